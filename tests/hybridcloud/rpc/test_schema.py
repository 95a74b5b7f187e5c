"""Signatures as JSON: what travels arrives as it was, and nothing else arrives at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, TypedDict
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from hybridcloud.rpc import RpcBodyError, RpcModel, RpcSetupError, RpcValidationError
from hybridcloud.rpc.schema import Meta, MethodSchema, dump_meta
from silos.mode import SiloMode, assume_silo
from tests.hybridcloud.rpc.orchard import Fruit, Kind, orchard


class Colour(Enum):
    RED = "red"
    GREEN = 2


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Point:
    x: int
    at: datetime | None = None
    weight: float = 1.0


class Named(TypedDict):
    name: str
    point: Point


zones = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))]
)
moments = st.datetimes(timezones=zones)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(10**30), 10**30)
points = st.builds(Point, x=integers, at=st.none() | moments)
fruits: st.SearchStrategy[Fruit] = st.recursive(
    st.builds(
        Fruit,
        organization_id=integers,
        name=texts,
        kind=st.sampled_from(Kind),
        picked_at=st.none() | moments,
        weight=floats,
    ),
    lambda inner: st.builds(Fruit, name=texts, seeds=st.lists(inner, max_size=3)),
    max_leaves=5,
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, integers),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "str": (str, texts),
    "bytes": (bytes, st.binary(max_size=20)),
    "none": (None, st.none()),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "uuid": (UUID, st.uuids()),
    "date": (date, st.dates()),
    "time": (time, st.times()),
    "datetime": (datetime, moments),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Size, st.sampled_from(Size)),
    "str enum": (Kind, st.sampled_from(Kind)),
    "literal": (Literal["a", 3], st.sampled_from(["a", 3])),
    "optional": (int | None, st.none() | integers),
    "list": (list[int], st.lists(integers, max_size=4)),
    "tuple": (tuple[int, str], st.tuples(integers, texts)),
    "long tuple": (tuple[float, ...], st.lists(floats, max_size=4).map(tuple)),
    "set": (set[int], st.sets(integers, max_size=4)),
    "frozenset": (frozenset[str], st.frozensets(texts, max_size=4)),
    "dict": (
        dict[str, list[float]],
        st.dictionaries(texts, st.lists(floats, max_size=2), max_size=3),
    ),
    "dict by id": (dict[int, Kind], st.dictionaries(integers, st.sampled_from(Kind), max_size=3)),
    "dict by uuid": (dict[UUID, int], st.dictionaries(st.uuids(), integers, max_size=3)),
    "json": (JsonValue, json_values),
    "any": (Any, json_values),
    "model": (Fruit, fruits),
    "models": (list[Fruit | None], st.lists(st.none() | fruits, max_size=3)),
    "dataclass": (Point, points),
    "typed dict": (Named, st.fixed_dictionaries({"name": texts, "point": points})),
}


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_a_value_arrives_as_it_was_sent(name: str, data: st.DataObject) -> None:
    values = TYPES[name][1]
    schema = _schema(name)
    value = data.draw(values)
    back = schema.load_reply(schema.dump_reply(value))
    assert back == value
    assert type(back) is type(value)
    assert schema.load_args(schema.dump_args({"value": value})) == {"value": value}


_made: dict[str, MethodSchema] = {}


def _schema(name: str) -> MethodSchema:
    if name not in _made:
        type_ = TYPES[name][0]
        _made[name] = MethodSchema(f"a.{name}", {"value": type_}, {}, type_)
    return _made[name]


@given(fruit=fruits, at=st.none() | moments, payload=json_values)
def test_a_remote_call_gives_what_a_local_one_gives(
    fruit: Fruit, at: datetime | None, payload: Any
) -> None:
    from hybridcloud.testutils.rpc import in_process_transport

    with assume_silo(SiloMode.CONTROL):
        local = orchard.store(fruit=fruit, at=at, payload=payload)
    with assume_silo(SiloMode.CELL, cell="us"), in_process_transport():
        remote = orchard.store(fruit=fruit, at=at, payload=payload)
    assert remote == local == fruit


@pytest.mark.parametrize(
    "names",
    [
        ["schema", "json", "copy", "dict"],
        ["model_config", "model_fields", "validate"],
        ["args", "meta"],
        ["self", "cls", "class", "value"],
    ],
)
def test_parameters_may_have_any_name(names: list[str]) -> None:
    schema = MethodSchema("a.b", dict.fromkeys(names, int), {names[0]: 7}, int)
    args = dict(zip(names, range(9), strict=False))
    assert schema.load_args(schema.dump_args(args)) == args
    rest = {name: args[name] for name in names[1:]}
    assert schema.load_args(schema.dump_args(rest)) == {names[0]: 7, **rest}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "type_", [float, list[float], dict[str, float], JsonValue, Any, Fruit, Point]
)
def test_nan_never_arrives(type_: Any, value: float) -> None:
    schema = MethodSchema("a.b", {"value": type_}, {}, int)
    wrapped: Any = {list[float]: [value], dict[str, float]: {"a": value}}.get(type_, value)
    if type_ is Fruit:
        wrapped = Fruit.model_construct(weight=value)
    if type_ is Point:
        wrapped = Point(1, weight=value)
    with pytest.raises(RpcValidationError, match="finite_number"):
        schema.load_args(schema.dump_args({"value": wrapped}))


def test_a_model_cannot_let_nan_in_by_a_setting_of_its_own() -> None:
    class Loose(RpcModel):
        model_config = pydantic.ConfigDict(allow_inf_nan=True)
        weight: float = 1.0

    schema = MethodSchema("a.b", {"value": Loose}, {}, int)
    with pytest.raises(RpcValidationError, match=r"args\.value\.weight: finite_number"):
        schema.load_args(b'{"value":{"weight":NaN}}')


def test_a_naive_datetime_never_arrives() -> None:
    naive = datetime(2026, 11, 29)  # noqa: DTZ001
    for type_, value in (
        (datetime, naive),
        (list[datetime], [naive]),
        (dict[str, datetime | None], {"a": naive}),
        (Point, Point(1, naive)),
        (Named, {"name": "", "point": Point(1, naive)}),
        (Fruit, Fruit.model_construct(seeds=[Fruit.model_construct(picked_at=naive)])),
    ):
        schema = MethodSchema("a.b", {"value": type_}, {}, type_)
        with pytest.raises(RpcValidationError, match=r"^args\.value.*timezone_aware"):
            schema.load_args(schema.dump_args({"value": value}))
        with pytest.raises(RpcValidationError, match=r"^value.*timezone_aware"):
            schema.load_reply(schema.dump_reply(value))


def test_a_model_refuses_a_naive_datetime_and_nan_where_it_is_made() -> None:
    with pytest.raises(pydantic.ValidationError, match="timezone"):
        Fruit(picked_at=datetime(2026, 11, 29))  # noqa: DTZ001
    with pytest.raises(pydantic.ValidationError, match="finite"):
        Fruit(weight=math.nan)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(int, "1"), (str, 1), (Fruit, 3), (list[int], "ab"), (datetime, "2026-11-29T00:00:00Z")],
)
def test_an_argument_of_another_type_is_refused_before_it_is_sent(type_: Any, value: Any) -> None:
    schema = MethodSchema("a.b", {"value": type_}, {}, int)
    with pytest.raises(RpcValidationError, match=r"^Arguments of a\.b cannot be sent"):
        schema.dump_args({"value": value})


def test_models_are_frozen_and_readable_from_attributes() -> None:
    class Row:
        organization_id, name = 5, "x"

    fruit = Fruit.model_validate(Row())
    assert (fruit.organization_id, fruit.name, fruit.kind) == (5, "x", Kind.APPLE)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        fruit.name = "y"  # type: ignore[misc]


class Foreign(pydantic.BaseModel):
    at: datetime | None = None


@pydantic.dataclasses.dataclass
class ForeignPoint:
    at: datetime | None = None


@pytest.mark.parametrize("type_", [Foreign, list[Foreign], dict[str, Foreign | None], ForeignPoint])
def test_a_model_that_is_no_rpc_model_is_refused_at_declaration(type_: Any) -> None:
    with pytest.raises(RpcSetupError, match=r"^Not an RpcModel: Foreign"):
        MethodSchema("a.b", {"value": type_}, {}, int)


def test_an_rpc_model_with_a_foreign_field_is_refused_where_it_is_declared() -> None:
    with pytest.raises(RpcSetupError, match=r"^Not an RpcModel: Foreign "):

        class Holder(RpcModel):
            inner: Foreign | None = None


def test_keys_of_a_dict_are_values_and_are_not_told() -> None:
    schema = MethodSchema("a.b", {"value": dict[str, dict[str, int]]}, {}, int)
    with pytest.raises(RpcValidationError) as caught:
        schema.load_args(b'{"value":{"my-secret":{"name":"x"}}}')
    assert [str(problem) for problem in caught.value.problems] == ["args.value.*.*: int_type"]


def test_an_error_of_reading_holds_no_cause_that_would_hold_the_value() -> None:
    schema = MethodSchema("a.b", {"value": int}, {}, int)
    with pytest.raises(RpcValidationError) as caught:
        schema.load_args(b'{"value":"my-secret"}')
    assert "my-secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"value"', b'{"error":{}}'])
def test_a_reply_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises((RpcBodyError, RpcValidationError)):
        MethodSchema("a.b", {}, {}, int | None).load_reply(body)


def test_meta_travels_without_what_is_not_set() -> None:
    assert dump_meta(Meta("control")) == b'{"to":"control"}'
    full = Meta("cell:us", {"depth": 1}, {"sentry-trace": "1-2-1"})
    meta, _ = MethodSchema("a.b", {}, {}, None).load_call(
        b'{"meta":' + dump_meta(full) + b',"args":{}}'
    )
    assert meta == full
