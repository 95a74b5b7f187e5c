"""Mistakes of a declaration: each fails at start, naming service, method and parameter."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud.errors import ConfigurationError, RegistryError
from hybridcloud.rpc import (
    ByCellName,
    ByOrganizationId,
    RpcError,
    RpcService,
    RpcSetupError,
    cell_rpc_method,
    rpc_method,
)
from hybridcloud.rpc.service import check_all, services
from silos.mode import SiloMode
from tests.hybridcloud.rpc.orchard import Orchard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _open_registry() -> Iterator[None]:
    with services.opened():
        yield


def declare(
    method: Any = None,
    *,
    silo: Any = SiloMode.CONTROL,
    key: Any = "mistaken",
    implementation: Any = lambda cls: cls,
    name: str = "get",
    base: type = RpcService,
) -> type[RpcService]:
    """Declare a service with one method."""
    body: dict[str, Any] = {"__module__": __name__}
    if key is not None:
        body["key"] = key
    if silo is not None:
        body["local_silo"] = silo
    if method is not None:
        body[name] = method
    if implementation is not False:
        body["get_local_implementation"] = classmethod(implementation)
    return type("Mistaken", (base,), body)


@rpc_method
@abstractmethod
def good(self: Any, *, number: int) -> int: ...


@rpc_method
@abstractmethod
def positional(self: Any, number: int) -> int: ...


@rpc_method
@abstractmethod
def many(self: Any, *numbers: int) -> int: ...


@rpc_method
@abstractmethod
def keywords(self: Any, **numbers: int) -> int: ...


@rpc_method
@abstractmethod
def underscore(self: Any, *, _number: int) -> int: ...


@rpc_method
@abstractmethod
def bare(self: Any, *, number) -> int: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


@rpc_method
@abstractmethod
def no_result(self: Any, *, number: int): ...  # type: ignore[no-untyped-def]  # noqa: ANN201


@rpc_method
def concrete(self: Any, *, number: int) -> int:
    return number


@rpc_method
@abstractmethod
async def coroutine(self: Any, *, number: int) -> int: ...


@abstractmethod
def unmarked(self: Any, *, number: int) -> int: ...


@cell_rpc_method(resolve=ByCellName())
@abstractmethod
def of_cell(self: Any, *, cell_name: str) -> int: ...


@cell_rpc_method(resolve=ByOrganizationId("org_id"))
@abstractmethod
def reads_nothing(self: Any, *, organization_id: int) -> int: ...


CLASS_MISTAKES: list[tuple[Callable[..., Any] | None, dict[str, Any], str]] = [
    (good, {"key": None}, "Wrong key None of RPC service Mistaken"),
    (good, {"key": ""}, "Wrong key ''"),
    (good, {"key": "With Space"}, "Wrong key 'With Space'"),
    (good, {"key": "Capital"}, "Wrong key 'Capital'"),
    (good, {"silo": None}, "No local silo of RPC service 'mistaken'"),
    (good, {"silo": SiloMode.MONOLITH}, "No local silo of RPC service 'mistaken'"),
    (
        good,
        {"silo": SiloMode.CELL},
        r"'get' of service 'mistaken': wrong decorator.*CELL.*cell_rpc_method",
    ),
    (of_cell, {}, r"'get' of service 'mistaken': wrong decorator.*CONTROL.*@rpc_method"),
    (positional, {}, "'get' of service 'mistaken': parameter 'number' is not keyword-only"),
    (many, {}, "'get' of service 'mistaken': parameter 'numbers' is not keyword-only"),
    (keywords, {}, "'get' of service 'mistaken': parameter 'numbers' is not keyword-only"),
    (underscore, {}, "'get' of service 'mistaken': parameter '_number' begins with an underscore"),
    (good, {"name": "_get"}, "'_get' of service 'mistaken': its name begins with an underscore"),
    (bare, {}, "'get' of service 'mistaken': parameter 'number' has no annotation"),
    (no_result, {}, "'get' of service 'mistaken': its result has no annotation"),
    (concrete, {}, "'get' of service 'mistaken': it is not abstract"),
    (coroutine, {}, "'get' of service 'mistaken': it is a coroutine function"),
    (unmarked, {}, "Abstract method 'get' of RPC service 'mistaken' is not an RPC method"),
    (good, {"implementation": False}, "Abstract method 'get_local_implementation' of RPC service"),
    (
        reads_nothing,
        {"silo": SiloMode.CELL},
        r"'get' of service 'mistaken': ByOrganizationId\('org_id'\) reads the parameter 'org_id'",
    ),
]


@pytest.mark.parametrize(("method", "changes", "message"), CLASS_MISTAKES)
def test_a_mistake_of_the_class_fails_where_it_is_declared(
    method: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RpcSetupError, match=message) as caught:
        declare(method, **changes)
    assert isinstance(caught.value, ConfigurationError)
    assert isinstance(caught.value, RpcError)
    assert "mistaken" not in services


def test_a_key_that_is_taken_is_refused_and_names_both() -> None:
    with pytest.raises(
        RegistryError, match=r"Duplicate RPC service 'orchard'.*orchard\.Orchard.*Mistaken"
    ):
        declare(good, key="orchard")
    assert services.get("orchard") is Orchard.declaration


def test_an_implementation_with_a_key_of_its_own_is_refused() -> None:
    service = declare(good)
    with pytest.raises(RpcSetupError, match=r"^Second key in Mistaken"):
        declare(good, key="second", base=service)


def only_annotation(annotation: Any) -> Any:
    def get(self: Any, *, number: int, item: Any) -> int: ...

    get.__annotations__["item"] = annotation
    return rpc_method(abstractmethod(get))


@pytest.mark.parametrize("annotation", ["Missing", "list[Missing]", "Context", "int | Missing"])
def test_a_type_that_cannot_be_found_is_named_at_start(annotation: str) -> None:
    declare(only_annotation(annotation))
    with pytest.raises(
        RpcSetupError,
        match=r"'get' of service 'mistaken': parameter 'item' has the annotation .*TYPE_CHECKING",
    ) as caught:
        check_all()
    assert (caught.value.service, caught.value.method) == ("mistaken", "get")


class Opaque:
    pass


@pytest.mark.parametrize("annotation", ["Opaque", "list[Opaque]", Opaque, "dict[str, Opaque]"])
def test_a_type_that_cannot_travel_is_named_at_start(annotation: Any) -> None:
    declare(only_annotation(annotation))
    with pytest.raises(
        RpcSetupError,
        match=r"'get' of service 'mistaken': parameter 'item' has a type that cannot be sent",
    ):
        check_all()


def test_a_result_that_cannot_travel_is_named_at_start() -> None:
    @rpc_method
    @abstractmethod
    def get(self: Any) -> Opaque: ...

    declare(get)
    with pytest.raises(RpcSetupError, match="'get' of service 'mistaken': the result has a type"):
        check_all()


def test_a_type_is_also_checked_at_the_first_call() -> None:
    service = declare(only_annotation("Missing"))
    delegation: Any = service.create_delegation()
    from hybridcloud.testutils.rpc import in_process_transport

    with in_process_transport(), pytest.raises(RpcSetupError, match="parameter 'item'"):
        delegation.get(number=1, item=2)


def implementing(function: Any) -> Any:
    def make(cls: type) -> Any:
        return type("Local", (cls,), {"get": function} if function else {})() if function else None

    return make


def takes_less(self: Any) -> int:
    return 1


def takes_more(self: Any, *, number: int, more: int = 1) -> int:
    return number + more


def renames(self: Any, *, nmber: int) -> int:
    return nmber


def by_position_only(self: Any, number: int, /) -> int:
    return number


def swallows(self: Any, **number: int) -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (takes_less, "different parameters: 'number' is in the declaration but not in the Local"),
        (takes_more, "different parameters: 'more' is in the Local but not in the declaration"),
        (renames, "different parameters: 'number' is in the declaration"),
        (by_position_only, "parameter 'number' cannot be passed to Local by name"),
        (swallows, "parameter 'number' cannot be passed to Local by name"),
    ],
)
def test_different_parameters_of_the_implementation_fail_at_start(
    function: Any, message: str
) -> None:
    declare(good, implementation=implementing(function))
    with pytest.raises(RpcSetupError, match=f"'get' of service 'mistaken': {message}"):
        check_all()


def test_an_implementation_that_is_none_fails_at_start() -> None:
    declare(good, implementation=lambda cls: None)
    with pytest.raises(RpcSetupError, match=r"^Wrong local implementation of service 'mistaken'"):
        check_all()


def test_an_implementation_class_instead_of_an_instance_fails_at_start() -> None:
    declare(good, implementation=lambda cls: type("Local", (cls,), {"get": good}))
    with pytest.raises(RpcSetupError, match=r"Return an instance of a subclass of Mistaken"):
        check_all()


def test_implementations_of_another_silo_are_not_imported(configure: Any) -> None:
    made: list[type] = []
    declare(good, implementation=made.append)
    with configure(SILO_MODE="CELL", CELL="us"):
        check_all()
    assert made == []


def test_a_good_declaration_passes_and_its_implementation_is_made_once() -> None:
    made: list[Any] = []

    def make(cls: Any) -> Any:
        made.append(type("Local", (cls,), {"get": lambda self, *, number: number})())
        return made[-1]

    service = declare(good, implementation=make)
    check_all()
    delegation: Any = service.create_delegation()
    assert delegation.get(number=3) == 3
    assert delegation.get(number=4) == 4
    assert len(made) == 1


def test_every_public_name_is_exported_and_sorted() -> None:
    from hybridcloud import rpc

    assert sorted(rpc.__all__) == rpc.__all__
    assert all(hasattr(rpc, name) for name in rpc.__all__)
