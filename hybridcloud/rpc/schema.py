"""The JSON readers and writers of a method's arguments and result.

Reading is strict about types but tolerant about fields: unknown fields are ignored and missing ones
get their defaults, so that two releases can communicate. Parameters are keys of a TypedDict, not
attributes of a model, so that a parameter may be named ``json`` or ``model_config``. pydantic's
own parser refuses input that is nested too deeply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaSerializer, ValidationError

from .errors import Problem, RpcBodyError, RpcValidationError
from .harden import CONFIG, Harden

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Meta:
    """What a request carries besides the arguments.

    Attributes:
        to: the silo that is called: ``control`` or ``cell:<name>``; empty: the one that reads it.
        causation: what caused the call; see `hybridcloud.causation`.
        trace: headers of the caller's trace.
    """

    to: str = ""
    causation: Mapping[str, Any] | None = None
    trace: Mapping[str, str] | None = None


class MetaFields(TypedDict, total=False):
    """`Meta` on the wire."""

    to: str
    causation: dict[str, Any] | None
    trace: dict[str, str] | None


_META = TypeAdapter(MetaFields)


def dump_meta(meta: Meta) -> bytes:
    """Write meta as JSON, leaving out fields that are not set."""
    fields = {key: value for key in ("to", "causation", "trace") if (value := getattr(meta, key))}
    return _META.dump_json(cast("MetaFields", fields))


class MethodSchema:
    """The readers and writers of one method.

    Args:
        name: ``service.method``, for errors.
        parameters: the type of each parameter.
        defaults: the default of each parameter that has one.
        result: the type of the method's result.

    Raises:
        RpcSetupError: a type cannot be sent.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        defaults: Mapping[str, Any],
        result: Any,
    ) -> None:
        self.name = name
        self.defaults = dict(defaults)
        fields = {p: NotRequired[t] if p in defaults else t for p, t in parameters.items()}
        args = _typed_dict("Arguments", fields)
        self._names: set[str] = {*parameters, "args", "meta", "value"}
        self._call = self._adapt(
            _typed_dict("Call", {"meta": NotRequired[MetaFields], "args": args})
        )
        self._reply = self._adapt(_typed_dict("Reply", {"value": result}))
        self.arguments_type = args
        self._write_args = _serializer(self._adapt(args))
        self._write_reply = _serializer(self._reply)

    def _adapt(self, type_: Any) -> TypeAdapter[Any]:
        return TypeAdapter(Annotated[type_, Harden(self._names)])

    def dump_args(self, args: Mapping[str, Any]) -> bytes:
        """Write arguments as a JSON object.

        Raises:
            RpcValidationError: an argument does not have its declared type.
        """
        return _dump(self._write_args, dict(args), f"Arguments of {self.name}")

    def dump_reply(self, value: Any) -> bytes:
        """Write a result as the body of a reply.

        Raises:
            RpcValidationError: the result does not have its declared type.
        """
        return _dump(self._write_reply, {"value": value}, f"The result of {self.name}")

    def load_call(self, body: bytes) -> tuple[Meta, dict[str, Any]]:
        """Read a request's meta and all its arguments, including defaults.

        Raises:
            RpcBodyError: the body is not a call.
            RpcValidationError: an argument does not have its declared type.
        """
        try:
            read = self._call.validate_json(body, strict=True)
        except ValidationError as exc:
            raise self.refusal(exc) from None  # the cause holds values
        return Meta(**read.get("meta", {})), self.defaults | read["args"]

    def load_args(self, args: bytes) -> dict[str, Any]:
        """Read arguments that `dump_args` wrote, as another silo would.

        Raises:
            RpcBodyError: they are not a JSON object.
            RpcValidationError: an argument does not have its declared type.
        """
        return self.load_call(b'{"args":' + args + b"}")[1]

    def load_reply(self, body: bytes) -> Any:
        """Read the body of a reply.

        Raises:
            RpcBodyError: the body is not a reply.
            RpcValidationError: the result does not have its declared type.
        """
        try:
            return self._reply.validate_json(body, strict=True)["value"]
        except ValidationError as exc:
            raise self.refusal(exc) from None  # the cause holds values

    def refusal(self, exc: ValidationError) -> RpcBodyError | RpcValidationError:
        """Return an error that says where and how a body is invalid.

        It contains no values.
        """
        problems = [
            Problem(self._public(error["loc"]), error["type"])
            for error in exc.errors(include_url=False, include_context=False, include_input=False)
        ]
        inside = all(_is_inside(problem.location) for problem in problems)
        kind = RpcValidationError if inside else RpcBodyError
        return kind(f"{problems[0]} in {self.name}.", problems=problems)

    def _public(self, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
        # A dict's keys are the caller's values; only declared names may appear in an error.
        return tuple(p if isinstance(p, int) or p in self._names else "*" for p in location)


def _is_inside(location: tuple[str | int, ...]) -> bool:
    """Return whether an argument or the result is at fault, not the body."""
    return location[:1] == ("value",) or (location[:1] == ("args",) and len(location) > 1)


def _typed_dict(name: str, fields: Mapping[str, Any]) -> Any:
    made = TypedDict(name, dict(fields))  # type: ignore[misc]  # noqa: UP013
    # pydantic documents this attribute for TypedDicts, but type checkers do not know it.
    setattr(made, "__pydantic_config__", CONFIG)  # noqa: B010
    return made


def _serializer(adapter: TypeAdapter[Any]) -> SchemaSerializer:
    # pydantic does not pass a TypedDict's own config on to its serializer.
    config = {"ser_json_bytes": "base64", "ser_json_inf_nan": "constants"}
    return SchemaSerializer(adapter.core_schema, cast("Any", config))


def _dump(serializer: SchemaSerializer, value: Any, what: str) -> bytes:
    try:
        return serializer.to_json(value, warnings="error")
    except PydanticSerializationError as exc:
        raise RpcValidationError(
            f"{what} cannot be sent: not of the declared type. Pass values of the types that the "
            f"method declares."
        ) from exc
