"""Where a call runs: here, in the other silo of this process, or over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud.causation import Causation, inside
from hybridcloud.registry import Slot
from hybridcloud.rpc import (
    ByCellName,
    CellResolution,
    RpcRemoteError,
    RpcService,
    RpcValidationError,
)
from hybridcloud.rpc import client as client_module
from hybridcloud.rpc import endpoint as endpoint_module
from hybridcloud.rpc.client import Outgoing, Reply, transport
from silos.errors import CellMappingNotFoundError, UnknownCellError
from silos.mode import SiloMode, assume_silo
from tests.hybridcloud.rpc.orchard import Fruit, Orchard, Ran, orchard, tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridcloud.testutils.rpc import RpcServer


class Recorder:
    """A transport that remembers what it was given."""

    round_trips_local_calls = False

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []

    def send(self, request: Outgoing) -> Reply:
        self.sent.append(request)
        return Reply(200, b'{"value":"sent"}')


@pytest.fixture
def wire() -> Iterator[Recorder]:
    made = Recorder()
    with transport.override(made):
        yield made


def test_a_delegation_is_an_instance_of_its_declaration() -> None:
    assert isinstance(orchard, Orchard)
    assert orchard.count.__doc__ == "Return the number."
    assert "orchard.count" in repr(orchard.count)


def test_in_its_own_silo_a_call_is_local(wire: Recorder, ran: Ran) -> None:
    with assume_silo(SiloMode.CONTROL):
        assert orchard.where() == "the control silo"
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert tree.where(cell_name="eu") == "cell 'eu'"
    assert (wire.sent, ran.names) == ([], ["where", "where"])


def test_from_another_silo_a_call_is_sent(wire: Recorder, ran: Ran) -> None:
    with assume_silo(SiloMode.CELL, cell="us"):
        assert orchard.where() == "sent"
        assert tree.where(cell_name="eu") == "sent"
    with assume_silo(SiloMode.CONTROL):
        assert tree.where(cell_name="us") == "sent"
    assert [str(request.target) for request in wire.sent] == [
        "the control silo",
        "cell 'eu'",
        "cell 'us'",
    ]
    assert [request.path for request in wire.sent][1] == "/api/0/internal/rpc/tree/where/"
    assert ran.names == []


def test_a_monolith_steps_into_the_other_silo(ran: Ran) -> None:
    assert orchard.where() == "the control silo"
    assert tree.where(cell_name="eu") == "cell 'eu'"
    with assume_silo(SiloMode.CELL, cell="us"):
        assert tree.where(cell_name="eu") == "cell 'eu'"
        assert orchard.where() == "the control silo"
    assert len(ran.names) == 4


def test_a_monolith_of_one_database_has_one_cell(configure: Any, ran: Ran) -> None:
    with configure(CELLS=[], DATABASES={}, CELL_RESOLVER=None):
        assert tree.where(cell_name="monolith") == "cell 'monolith'"
        assert tree.strict(organization_id=99) == "cell 'monolith'"
        assert orchard.where() == "the control silo"


def test_a_monolith_with_a_transport_in_place_sends(wire: Recorder) -> None:
    with assume_silo(SiloMode.MONOLITH, cell="us"):
        assert tree.where(cell_name="us") == "sent"


@pytest.mark.parametrize(("organization_id", "cell"), [(1, "us"), (2, "eu")])
def test_the_cell_of_an_organization_is_asked_of_the_resolver(
    organization_id: int, cell: str, ran: Ran
) -> None:
    assert tree.strict(organization_id=organization_id) == f"cell '{cell}'"
    assert tree.hang(fruit=Fruit(organization_id=organization_id)) == f"cell '{cell}'"


def test_an_unknown_organization_is_an_error_that_names_the_method(
    wire: Recorder, ran: Ran
) -> None:
    with pytest.raises(CellMappingNotFoundError, match="organization 77") as caught:
        tree.strict(organization_id=77)
    assert caught.value.__notes__ == ["While looking up the cell of a call of tree.strict."]
    with pytest.raises(CellMappingNotFoundError):
        tree.hang(fruit=Fruit(organization_id=77))
    assert (wire.sent, ran.names) == ([], [])


def test_an_unknown_organization_is_none_where_the_method_says_so(wire: Recorder, ran: Ran) -> None:
    assert tree.lenient(organization_id=77) is None
    assert (wire.sent, ran.names) == ([], [])
    assert tree.lenient(organization_id=1) == "sent"


def test_an_unknown_cell_is_an_error_before_anything_is_sent(wire: Recorder) -> None:
    with pytest.raises(UnknownCellError, match=r"'ue'.*'eu'"):
        tree.where(cell_name="ue")
    assert wire.sent == []


def test_a_rule_of_a_user_sees_all_arguments(wire: Recorder) -> None:
    from abc import abstractmethod

    from hybridcloud.rpc import cell_rpc_method
    from hybridcloud.rpc.service import services

    class ByInitial(CellResolution):
        def find_cell(self, arguments: Mapping[str, Any]) -> str:
            return {"u": "us", "e": "eu"}[arguments["name"][0]]

    with services.opened():

        class Named(RpcService):
            key = "named"
            local_silo = SiloMode.CELL

            @cell_rpc_method(resolve=ByInitial())
            @abstractmethod
            def get(self, *, name: str = "europe") -> str: ...

            @classmethod
            def get_local_implementation(cls) -> RpcService:
                raise NotImplementedError

        named = Named.create_delegation()
        assert named.get() == "sent"
        assert named.get(name="ulm") == "sent"
    assert [request.target.cell for request in wire.sent] == ["eu", "us"]


def test_a_missing_or_unknown_argument_is_a_type_error_at_the_caller(wire: Recorder) -> None:
    with pytest.raises(TypeError, match="number"):
        orchard.count()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nmber"):
        orchard.count(number=1, nmber=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        orchard.count(1)  # type: ignore[misc]
    assert wire.sent == []


def test_defaults_are_sent_so_that_they_are_the_caller_s(wire: Recorder) -> None:
    wire_reply = Reply(200, b'{"value":1}')
    wire.send = lambda request: (wire.sent.append(request), wire_reply)[1]  # type: ignore[method-assign]
    orchard.count(number=1)
    assert wire.sent[0].body == b'{"meta":{"to":"control"},"args":{"number":1,"note":"none"}}'


def test_local_calls_of_a_test_go_through_json_too(in_process: None, ran: Ran) -> None:
    with assume_silo(SiloMode.CONTROL):
        with pytest.raises(RpcValidationError, match="cannot be sent"):
            orchard.count(number="1")  # type: ignore[arg-type]
        assert ran.names == []
        with pytest.raises(RpcValidationError, match=r"The result of orchard\.lie"):
            orchard.lie()
        assert orchard.odd_names(schema=1, json="x", model_config=True) == [1, "x", True, 4]


def test_odd_parameter_names_work_over_the_wire(server: RpcServer) -> None:
    assert orchard.odd_names(schema=1, json="x", model_config=True, copy=2) == [1, "x", True, 2]


def test_causation_travels_with_a_call(server: RpcServer, ran: Ran) -> None:
    with inside(Causation("c", 2, ("A", "B"))):
        orchard.where()
    assert (ran.depth, ran.chain, ran.was_inside) == (2, ("A", "B"), True)
    orchard.where()
    assert (ran.depth, ran.chain, ran.was_inside) == (0, (), True)


def test_trace_headers_travel_with_a_call(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    seen: list[Any] = []
    sending: Slot[[], Mapping[str, str]] = Slot(
        "x", lambda: {"sentry-trace": "1-2-1", "baggage": "b"}
    )
    taking: Slot[[Any], Any] = Slot("x", lambda headers: seen.append(headers) or nullcontext())
    monkeypatch.setattr(client_module, "trace_headers", sending)
    monkeypatch.setattr(endpoint_module, "continue_trace", taking)
    orchard.where()
    assert seen == [{"sentry-trace": "1-2-1", "baggage": "b"}]


def test_the_caller_s_context_variables_do_not_reach_the_method(
    in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext
    from contextvars import ContextVar

    mine: ContextVar[str] = ContextVar("mine", default="unset")
    seen: list[str] = []
    taking: Slot[[Any], Any] = Slot("x", lambda _: seen.append(mine.get()) or nullcontext())
    monkeypatch.setattr(endpoint_module, "continue_trace", taking)
    mine.set("the caller's")
    orchard.where()
    assert seen == ["unset"]


def test_a_local_exception_comes_as_it_is_and_a_remote_one_as_an_rpc_error(
    in_process: None,
) -> None:
    with assume_silo(SiloMode.CONTROL), pytest.raises(LookupError, match="no fruit x"):
        orchard.fail(value="x")
    with pytest.raises(RpcRemoteError, match="LookupError"):
        orchard.fail(value="x")


def test_rules_say_what_they_read() -> None:
    assert repr(ByCellName("home")) == "ByCellName('home')"
