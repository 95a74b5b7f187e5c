"""Writes messages with one INSERT per table.

Database defaults fill the id and the times, so an id is drawn by its own INSERT, and times are
the database's.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import int_array
from hybridcloud.outbox.store.tables import table_names
from hybridcloud.outbox.store.templates import COLUMN_TYPES
from hybridcloud.outbox.write.after_commit import Batch, WrittenRow, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.store.tables import OutboxTable

MOST_PER_STATEMENT: Final = 20_000
_INTEGERS: Final = frozenset({"integer", "bigint"})
_REST: Final = {
    "category": "integer",
    "object_identifier": "bigint",
    "payload": "jsonb",
    "headers": "jsonb",
}


@dataclass(slots=True)
class Row:
    """A message that was checked and encoded, but not written yet.

    Attributes:
        messages: the instances that get the row's id.
        outbox: their model.
        shard: the values of the sharding columns.
        category: the category's number.
        object_identifier: the object.
        payload: JSON text, or None.
        headers: JSON text, or None.
        coalesces: whether a newer row of the object replaces it.
        delay_s: seconds to park it for; None: it may run at once.
        flush: whether it is flushed after the commit.
        depth: the number of savepoints open when it was written; None before that.
    """

    messages: list[OutboxTable]
    outbox: type[OutboxTable]
    shard: tuple[Any, ...]
    category: int
    object_identifier: int
    payload: str | None
    headers: str | None
    coalesces: bool
    delay_s: float | None
    flush: bool
    depth: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What rows that replace each other have in common."""
        return (self.outbox, *self.shard, self.category, self.object_identifier)


def as_row(message: OutboxTable, *, headers: Mapping[str, Any] | None, flush: bool) -> Row:
    """Check a message and encode it.

    Raises:
        InvalidOutboxError: scope and category do not fit, or one is unknown.
    """
    scope = validated_scope(message.shard_scope, message.category)
    delay = message.delay.total_seconds() if message.delay is not None else 0.0
    own_headers = message.headers if message.headers is not None else headers
    return Row(
        messages=[message],
        outbox=type(message),
        shard=tuple(int(v) if isinstance(v, int) else v for v in message.shard_key()),
        category=int(message.category),
        object_identifier=int(message.object_identifier),
        payload=as_json(type(message), "payload", message.payload),
        headers=as_json(type(message), "headers", own_headers),
        # A delayed message replaces nothing: the earlier one must not wait for its time.
        coalesces=scope.policy.coalesce and delay <= 0,
        delay_s=delay if delay > 0 else None,
        flush=flush,
    )


def insert(connection: BaseDatabaseWrapper, rows: Iterable[Row]) -> None:
    """Insert rows in the open transaction, and set the messages' ids."""
    # One statement per table, in the order of the rows, so that the ids are in that order.
    tables: dict[tuple[type[OutboxTable], bool], list[Row]] = {}
    for row in rows:
        tables.setdefault((row.outbox, row.delay_s is not None), []).append(row)
    for (outbox, delayed), own in tables.items():
        for start in range(0, len(own), MOST_PER_STATEMENT):
            _insert_chunk(
                connection, outbox, own[start : start + MOST_PER_STATEMENT], delayed=delayed
            )


def _insert_chunk(
    connection: BaseDatabaseWrapper,
    outbox: type[OutboxTable],
    rows: Sequence[Row],
    *,
    delayed: bool,
) -> None:
    ids = _execute(connection, outbox, rows, delayed=delayed)
    written: list[WrittenRow] = []
    for identifier, row in zip(ids, rows, strict=True):
        # Several, where a later message replaced earlier ones: all get its id.
        for message in row.messages:
            message.pk = identifier
            message._state.adding = False
            message._state.db = connection.alias
        # A parked row is not due, so a flush must not wait for it.
        if row.flush and not delayed:
            # The cell comes first among the columns, and last in the key.
            key = ShardKey(*row.shard[-2:], *row.shard[:-2])
            written.append(WrittenRow(identifier, key, row.category, row.object_identifier))
    register(connection, Batch(outbox, Counter(row.category for row in rows), written))


def _execute(
    connection: BaseDatabaseWrapper,
    outbox: type[OutboxTable],
    rows: Sequence[Row],
    *,
    delayed: bool,
) -> list[int]:
    values = [
        (*row.shard, row.category, row.object_identifier, row.payload, row.headers, row.delay_s)
        for row in rows
    ]
    columns = list(zip(*values, strict=True))[: None if delayed else -1]
    names = _columns(outbox, delayed=delayed)
    # A value that all rows share is sent once, except the object, which sets the number of rows.
    common = frozenset(
        name
        for name, column in zip(names, columns, strict=True)
        if len(rows) == 1 or (name != "object_identifier" and _is_same(column))
    )
    given = dict(zip(names, columns, strict=True))
    params = [given[name][0] for name in names if name in common]
    params += [
        int_array(given[name]) if kind in _INTEGERS else list(given[name])
        for name, kind in names.items()
        if name not in common
    ]
    with connection.cursor() as cursor:
        cursor.execute(_statement(outbox, common, delayed=delayed), params)
        return [identifier for (identifier,) in cursor.fetchall()]


def _is_same(column: Sequence[Any]) -> bool:
    return column.count(column[0]) == len(column)


@cache
def _columns(outbox: type[OutboxTable], *, delayed: bool) -> dict[str, str]:
    columns = {column: COLUMN_TYPES[column] for column in outbox.sharding_columns} | _REST
    return columns | {"delay_s": "double precision"} if delayed else columns


@cache
def _statement(outbox: type[OutboxTable], common: frozenset[str], *, delayed: bool) -> str:
    tables, columns = table_names(outbox), _columns(outbox, delayed=delayed)
    single = [f"%s::{kind} AS {name}" for name, kind in columns.items() if name in common]
    arrays = {name: kind for name, kind in columns.items() if name not in common}
    source = f"SELECT {', '.join([*single, *arrays])}"
    if arrays:
        kinds = ", ".join(f"%s::{kind}[]" for kind in arrays.values())
        source += f" FROM unnest({kinds}) AS a({', '.join(arrays)})"
    target, names = tables.outbox, ", ".join(_columns(outbox, delayed=False))
    more_names, more_values = "", ""
    if delayed:
        # The database's clock, not the writer's, and not now(), which is the transaction's start.
        target = tables.parked
        more_names = ", reason, scheduled_from, scheduled_for"
        more_values = (
            ", 'delayed', clock_timestamp(), clock_timestamp() + make_interval(secs => delay_s)"
        )
    into = f"INSERT INTO {target} ({names}{more_names})"
    if not arrays and not delayed:
        # For one row VALUES takes half the planning of a SELECT.
        return f"{into} VALUES ({', '.join(['%s'] * len(columns))}) RETURNING id"
    return f"{into} SELECT {names}{more_values} FROM ({source}) AS m RETURNING id"  # noqa: S608 - names from the model


def as_json(outbox: type[OutboxTable], column: str, value: Any) -> str | None:
    """Return a value as text for a JSON column of an outbox; None stays None.

    Raises:
        TypeError: it is not JSON.
        ValueError: it contains a NaN, which PostgreSQL's JSON does not have.
    """
    if value is None:
        return None
    field: Any = outbox._meta.get_field(column)
    return json.dumps(value, cls=field.encoder, allow_nan=False)
