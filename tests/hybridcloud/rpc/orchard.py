"""A control and a cell service of the RPC tests, which count what ran; without it each test would declare its own."""

from __future__ import annotations

import threading
from abc import abstractmethod
from datetime import datetime  # noqa: TC003  (read at run time)
from enum import StrEnum
from typing import TYPE_CHECKING

from django.db import OperationalError
from pydantic import JsonValue  # noqa: TC002  (read at run time)

from hybridcloud import causation
from hybridcloud.rpc import (
    ByCellName,
    ByOrganizationId,
    ByOrganizationIdAttribute,
    RpcModel,
    RpcService,
    cell_rpc_method,
    rpc_method,
)
from silos.mode import SiloMode, get_current_silo

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_VALUE = "hunter2-must-not-leak"


class Kind(StrEnum):
    APPLE = "apple"
    PEAR = "pear"


class Fruit(RpcModel):
    organization_id: int = 0
    name: str = ""
    kind: Kind = Kind.APPLE
    picked_at: datetime | None = None
    weight: float = 1.0
    seeds: list[Fruit] = []


class Orchard(RpcService):
    key = "orchard"
    local_silo = SiloMode.CONTROL

    @rpc_method
    @abstractmethod
    def count(self, *, number: int, note: str = "none") -> int:
        """Return the number."""

    @rpc_method
    @abstractmethod
    def store(
        self,
        *,
        fruit: Fruit,
        at: datetime | None = None,
        weights: list[float] | None = None,
        tags: dict[str, int] | None = None,
        payload: JsonValue = None,
    ) -> Fruit: ...

    @rpc_method
    @abstractmethod
    def fail(self, *, value: str) -> None: ...

    @rpc_method
    @abstractmethod
    def wait(self) -> str: ...

    @rpc_method
    @abstractmethod
    def odd_names(
        self, *, schema: int, json: str, model_config: bool, copy: int = 4
    ) -> JsonValue: ...

    @rpc_method
    @abstractmethod
    def where(self) -> str: ...

    @rpc_method
    @abstractmethod
    def lie(self) -> int: ...

    @classmethod
    def get_local_implementation(cls) -> Orchard:
        return LocalOrchard()


class Tree(RpcService):
    key = "tree"
    local_silo = SiloMode.CELL

    @cell_rpc_method(resolve=ByCellName())
    @abstractmethod
    def where(self, *, cell_name: str) -> str: ...

    @cell_rpc_method(resolve=ByOrganizationId())
    @abstractmethod
    def strict(self, *, organization_id: int) -> str: ...

    @cell_rpc_method(resolve=ByOrganizationId(), return_none_if_mapping_not_found=True)
    @abstractmethod
    def lenient(self, *, organization_id: int) -> str | None: ...

    @cell_rpc_method(resolve=ByOrganizationIdAttribute("fruit"))
    @abstractmethod
    def hang(self, *, fruit: Fruit) -> str: ...

    @classmethod
    def get_local_implementation(cls) -> Tree:
        return LocalTree()


orchard = Orchard.create_delegation()
tree = Tree.create_delegation()


poison: list[Callable[[], BaseException]] = []
"""What `fail` raises instead, where a test says so."""


class Ran:
    """What handlers did: their names in order, and where the last one was."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.names: list[str] = []
        self.release = threading.Event()
        self.chain: tuple[str, ...] = ()
        self.depth = -1
        self.was_inside = False

    def note(self, name: str) -> str:
        self.names.append(name)
        current = causation.current()
        self.chain, self.depth = (current.chain, current.depth) if current else ((), -1)
        self.was_inside = causation.is_inside()
        return str(get_current_silo())


ran = Ran()


class LocalOrchard(Orchard):
    def count(self, *, number: int, note: str = "none") -> int:
        ran.note("count")
        return number

    def store(
        self,
        *,
        fruit: Fruit,
        at: datetime | None = None,
        weights: list[float] | None = None,
        tags: dict[str, int] | None = None,
        payload: JsonValue = None,
    ) -> Fruit:
        ran.note("store")
        return fruit

    def fail(self, *, value: str) -> None:
        ran.note("fail")
        if poison:
            raise poison[0]()  # noqa: RSE102 - it makes a new one
        if value == "database":
            raise OperationalError("server closed the connection")
        raise LookupError(f"no fruit {value}")

    def wait(self) -> str:
        ran.note("wait")
        ran.release.wait(20)
        return "waited"

    def odd_names(self, *, schema: int, json: str, model_config: bool, copy: int = 4) -> JsonValue:
        ran.note("odd_names")
        return [schema, json, model_config, copy]

    def where(self) -> str:
        return ran.note("where")

    def lie(self) -> int:
        ran.note("lie")
        return "not a number"  # type: ignore[return-value]


class LocalTree(Tree):
    def where(self, *, cell_name: str) -> str:
        return ran.note("where")

    def strict(self, *, organization_id: int) -> str:
        return ran.note("strict")

    def lenient(self, *, organization_id: int) -> str | None:
        return ran.note("lenient")

    def hang(self, *, fruit: Fruit) -> str:
        return ran.note("hang")


class Resolver:
    """Organizations 1 and 2 live in us and eu; no other is known."""

    def cells_of_organizations(self, ids: object) -> dict[int, str]:
        known = {1: "us", 2: "eu"}
        return {i: known[i] for i in ids if i in known}  # type: ignore[attr-defined]

    def cells_of_user(self, user_id: int) -> set[str]:
        return set()
