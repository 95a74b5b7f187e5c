"""Makes pydantic refuse NaN and naive datetimes everywhere in a type.

pydantic has no setting for either that applies to nested types too, so the schema of each
signature is walked once, when it is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from .errors import RpcSetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import CoreSchema

CONFIG = ConfigDict(
    extra="ignore",
    allow_inf_nan=False,
    # "constants" lets the reader refuse NaN; pydantic's default would write null instead.
    ser_json_inf_nan="constants",
    ser_json_bytes="base64",
    val_json_bytes="base64",
)


@dataclass(frozen=True, slots=True)
class Harden:
    """An annotation that hardens a type's schema and collects field names."""

    names: set[str]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        return _Hardening(handler, self.names).harden(handler(source))

    def __hash__(self) -> int:
        return id(self)


class _Hardening:
    """Hardens one schema: requires time zones and refuses NaN, even in Any."""

    def __init__(self, handler: GetCoreSchemaHandler, names: set[str] | None = None) -> None:
        self._handler = handler
        self._names = set[str]() if names is None else names
        self._seen: set[int] = set()

    def harden(self, schema: CoreSchema) -> CoreSchema:
        self._walk(schema)
        return schema

    def _walk(self, node: Any) -> None:
        if not isinstance(node, (dict, list, tuple)) or id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, dict):
            self._harden_one(node)
            self._names |= _field_names(node)
            # Metadata holds functions and JSON schemas; neither validates.
            node = [
                child for key, child in node.items() if key not in {"metadata", "serialization"}
            ]
        for child in node:
            self._walk(child)

    def _harden_one(self, node: dict[str, Any]) -> None:
        kind = node.get("type")
        if kind == "definition-ref":
            target = self._handler.resolve_ref_schema(cast("CoreSchema", node))
            if target is not node:
                self._walk(target)
        elif kind == "datetime":
            node["tz_constraint"] = "aware"
        elif kind == "float":
            node["allow_inf_nan"] = False
        elif kind == "any":
            checked = core_schema.no_info_after_validator_function(
                _refuse_infinite, core_schema.any_schema()
            )
            kept = {key: node[key] for key in ("ref", "metadata") if key in node}
            node.clear()
            node.update(checked, **kept)
            self._seen.add(id(node["schema"]))
        elif kind in {"model", "dataclass"} and _keeps_its_validator(node["cls"]):
            raise RpcSetupError(
                f"Not an RpcModel: {node['cls'].__qualname__} would accept NaN and datetimes "
                f"without a time zone. Derive it from hybridcloud.rpc.RpcModel."
            )


def _keeps_its_validator(cls: type) -> bool:
    """Return whether pydantic will use the class's own, unhardened validator."""
    return hasattr(cls, "__pydantic_complete__") and not hasattr(cls, "rpc_strict")


def _field_names(node: Mapping[str, Any]) -> set[str]:
    fields = node.get("fields")
    if isinstance(fields, dict):
        return {str(name) for name in fields}
    if isinstance(fields, (list, tuple)):
        return {f["name"] for f in fields if isinstance(f, dict) and "name" in f}
    return set()


def _refuse_infinite(value: Any) -> Any:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            raise PydanticCustomError("finite_number", "Input should be a finite number")
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return value


class RpcModel(BaseModel):
    """The base of models that are arguments or results of RPC methods.

    Instances are frozen and can be built from another object's attributes; NaN and naive datetimes
    are refused. Give each field a default that works with an older or newer release on the other
    side.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True, **CONFIG)
    rpc_strict: ClassVar[bool] = True

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Return the hardened schema of the model and its fields."""
        return _Hardening(handler).harden(handler(source))
