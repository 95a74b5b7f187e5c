"""Many calls as one request: one signature, results and errors in order, a bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridcloud import rpc
from hybridcloud.rpc import (
    RpcError,
    RpcRemoteError,
    RpcSetupError,
    RpcTooLargeError,
    RpcUnavailableError,
    RpcValidationError,
)
from hybridcloud.rpc import client as client_module
from hybridcloud.rpc.client import Outgoing, Reply, transport
from hybridcloud.rpc.sign import sign
from silos.mode import SiloMode, assume_silo
from tests.hybridcloud.rpc.orchard import SECRET_VALUE, Fruit, Ran, orchard, tree
from tests.hybridcloud.rpc.orchard import ran as calls
from tests.hybridcloud.rpc.wire import BATCH, post

if TYPE_CHECKING:
    from hybridcloud.testutils.rpc import RpcServer


def test_results_and_errors_come_in_the_order_of_the_calls(server: RpcServer, ran: Ran) -> None:
    with rpc.batch() as b:
        first = b.call(orchard.count, number=1)
        failing = b.call(orchard.fail, value=SECRET_VALUE)
        invalid = b.call(orchard.store, fruit=Fruit.model_construct(weight=float("inf")))
        fruit = b.call(orchard.store, fruit=Fruit(name="pear"))
        last = b.call(orchard.count, number=2, note="x")
    assert (first.result(), last.result()) == (1, 2)
    assert fruit.result() == Fruit(name="pear")
    assert [item.error is None for item in b.items] == [True, False, False, True, True]
    with pytest.raises(RpcRemoteError, match=r"LookupError.*orchard\.fail in the control silo"):
        failing.result()
    with pytest.raises(RpcValidationError, match=r"args\.fruit\.weight: finite_number") as caught:
        invalid.result()
    assert (caught.value.service, caught.value.method) == ("orchard", "store")
    assert SECRET_VALUE not in str(failing.error)
    assert ran.names == ["count", "fail", "store", "count"]
    assert server.accepted == 1


def test_a_batch_is_one_request_with_one_signature(
    server: RpcServer, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[str] = []

    def counting(path: str, body: bytes, *, now: float) -> str:
        signed.append(path)
        return sign(path, body, now=now)

    monkeypatch.setattr(client_module, "sign", counting)
    with rpc.batch() as b:
        for number in range(1000):
            b.call(orchard.count, number=number)
    assert [item.result() for item in b.items] == [*range(1000)]
    assert signed == [BATCH]
    assert ran.names == ["count"] * 1000


def test_the_thousand_and_first_call_is_refused(ran: Ran) -> None:
    with rpc.batch() as b:
        for number in range(1000):
            b.call(orchard.count, number=number)
        with pytest.raises(RpcTooLargeError, match="at most 1000"):
            b.call(orchard.count, number=1000)
        b.items.clear()
    assert ran.names == []


def test_the_endpoint_refuses_the_thousand_and_first_too(server: RpcServer, ran: Ran) -> None:
    for number, status in ((1001, 413), (1000, 200)):
        names = ",".join(['"orchard.count"'] * number)
        lines = ['{"meta":{"to":"control"},"calls":[' + names + "]}", *['{"number":1}'] * number]
        answer = post(server, BATCH, "\n".join(lines).encode())
        assert answer.status == status
        assert len(ran.names) == (1000 if status == 200 else 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"meta":{}}',
        b'{"meta":{},"calls":["orchard.count"]}',
        b'{"meta":{},"calls":[]}\n{"number":1}',
        b'{"meta":{},"calls":[1]}\n{"number":1}',
        b'{"meta":{},"calls":' + b"[" * 5000,
        b'{"meta":{},"calls":["orchard.count"],\n}\n{"number":1}',
    ],
)
def test_a_body_that_is_no_batch_is_refused(server: RpcServer, ran: Ran, body: bytes) -> None:
    answer = post(server, BATCH, body)
    assert (answer.status, answer.error["kind"], answer.leaks()) == (400, "body", [])
    assert ran.names == []


def test_a_bad_call_spoils_no_other(server: RpcServer, ran: Ran) -> None:
    names = ["orchard.count", "orchard.nothing", "nothing", "tree.where", "orchard.count"]
    arguments = ['{"number":' + "[" * 5000, "{}", "{}", '{"cell_name":"us"}', '{"number":3}']
    head = '{"meta":{"to":"control"},"calls":' + json.dumps(names) + "}"
    answer = post(server, BATCH, "\n".join((head, *arguments)).encode())
    first, *replies = answer.body.decode().split("\n")
    assert answer.status == 200
    assert first == '{"ok":[false,false,false,false,true]}'
    assert ['"body"' in replies[0], *('"not_found"' in reply for reply in replies[1:4])] == [
        True
    ] * 4
    assert replies[4] == '{"value":3}'
    assert ran.names == ["count"]


def test_a_call_that_cannot_be_written_is_not_sent(server: RpcServer, ran: Ran) -> None:
    with rpc.batch() as b:
        wrong = b.call(orchard.count, number="x")  # type: ignore[arg-type]
        right = b.call(orchard.count, number=1)
    assert right.result() == 1
    with pytest.raises(RpcValidationError, match="cannot be sent"):
        wrong.result()
    assert ran.names == ["count"]


def test_a_batch_goes_to_its_cell(server: RpcServer, ran: Ran) -> None:
    with rpc.batch(cell="eu") as b:
        here = b.call(tree.where, cell_name="us")
    assert here.result() == "cell 'eu'"


def test_a_silo_that_is_away_fails_the_batch_as_a_whole() -> None:
    class Away:
        round_trips_local_calls = False

        def send(self, request: Outgoing) -> Reply:
            raise request.fail(RpcUnavailableError, "Away.")

    with (
        transport.override(Away()),
        pytest.raises(RpcUnavailableError, match=r"^Away.*a batch"),
        rpc.batch() as b,
    ):
        item = b.call(orchard.count, number=1)
    with pytest.raises(RpcError, match=r"^No result yet: the batch with orchard\.count"):
        item.result()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ok":[true]}', b'{"ok":[true]}\n1\n2', b"[]\n{}"])
def test_an_unreadable_reply_fails_the_batch(body: bytes) -> None:
    class Odd:
        round_trips_local_calls = False

        def send(self, request: Outgoing) -> Reply:
            return Reply(200, body)

    with (
        transport.override(Odd()),
        pytest.raises(RpcRemoteError, match=r"^Unreadable"),
        rpc.batch() as b,
    ):
        b.call(orchard.count, number=1)


def test_one_unreadable_result_is_the_error_of_its_call() -> None:
    class Odd:
        round_trips_local_calls = False

        def send(self, request: Outgoing) -> Reply:
            return Reply(200, b'{"ok":[true,true]}\n{"value":"x"}\n{"value":2}')

    with transport.override(Odd()), rpc.batch() as b:
        b.call(orchard.count, number=1)
        b.call(orchard.count, number=2)
    assert isinstance(b.items[0].error, RpcRemoteError)
    assert b.items[1].result() == 2


def test_a_block_that_raises_sends_nothing(in_process: None, ran: Ran) -> None:
    def raise_inside() -> None:
        with rpc.batch() as b:
            b.call(orchard.count, number=1)
            raise KeyError

    with pytest.raises(KeyError):
        raise_inside()
    assert ran.names == []


def test_an_empty_batch_sends_nothing() -> None:
    class Never:
        round_trips_local_calls = False

        def send(self, request: Outgoing) -> Reply:
            raise AssertionError(request)

    with transport.override(Never()), rpc.batch():
        pass


@pytest.mark.parametrize("mode", [SiloMode.CONTROL, SiloMode.MONOLITH])
def test_a_batch_to_where_one_is_runs_here_call_by_call(mode: SiloMode, ran: Ran) -> None:
    with assume_silo(mode), rpc.batch() as b:
        place = b.call(orchard.where)
        failing = b.call(orchard.fail, value="x")
        last = b.call(orchard.count, number=2)
    assert (place.result(), last.result()) == ("the control silo", 2)
    with pytest.raises(LookupError, match="no fruit x"):
        failing.result()
    assert ran.names == ["where", "fail", "count"]


def test_a_method_of_the_other_kind_of_silo_is_refused() -> None:
    with pytest.raises(RpcSetupError, match=r"^Wrong batch for tree\.where: it runs in CELL"):
        rpc.batch().call(tree.where, cell_name="us")
    with pytest.raises(RpcSetupError, match=r"^Wrong batch for orchard\.count.*batch\(cell=…\)"):
        rpc.batch(cell="us").call(orchard.count, number=1)


def test_what_is_no_rpc_method_is_refused() -> None:
    with pytest.raises(RpcSetupError, match=r"^Not an RPC method"):
        rpc.batch().call(print)
    with pytest.raises(RpcSetupError, match=r"^Not an RPC method.*by name"):
        rpc.batch().call(orchard.count, 1)  # type: ignore[call-arg]


def test_a_missing_argument_is_a_type_error_at_the_call() -> None:
    with pytest.raises(TypeError, match="number"):
        rpc.batch().call(orchard.count)  # type: ignore[call-arg]


def test_a_tampered_batch_is_refused_as_a_whole(server: RpcServer, ran: Ran) -> None:
    body = b'{"meta":{"to":"control"},"calls":["orchard.count"]}\n{"number":1}'
    answer = post(server, BATCH, body.replace(b"1}", b"2}"), signed_body=body)
    assert (answer.status, answer.leaks(), ran.names) == (403, [], [])


def test_causation_travels_with_a_batch(server: RpcServer) -> None:
    from hybridcloud.causation import Causation, inside

    with inside(Causation("c", 4, ("A",))), rpc.batch() as b:
        b.call(orchard.count, number=1)
    assert (calls.depth, calls.chain, calls.was_inside) == (4, ("A",), True)
