"""Writes messages with one INSERT per table.

Database defaults fill the id and the times, so an id is drawn by its own INSERT, and times are
the database's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import batched
from typing import TYPE_CHECKING, Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models.expressions import DatabaseDefault

from hybridcloud.errors import InvalidOutboxError
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import engine_cursor, int_array
from hybridcloud.outbox.store.tables import table_names
from hybridcloud.outbox.store.templates import COLUMN_TYPES
from hybridcloud.outbox.write.after_commit import Batch, WrittenRow, mode_of, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.after_commit import FlushChoice

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
MOST_DELAY: Final = timedelta(days=3650)
# Bounds the memory and the time that one statement takes.
MOST_PER_STATEMENT: Final = 20_000
_REST: Final = {
    "category": "integer",
    "object_identifier": "bigint",
    "payload": "jsonb",
    "headers": "jsonb",
}


@dataclass(slots=True)
class Row:
    """A message that was checked and encoded, but not written yet.

    Several messages have one row where a later one replaced earlier ones; all of them get its id.
    ``payload`` and ``headers`` are JSON text. ``coalesces`` lets a newer row of the object replace
    it. ``delay_s`` is how many seconds to park it for, and ``due`` when it may run; None: at once.
    """

    outbox: type[OutboxTable]
    shard: tuple[Any, ...]
    category: int
    object_identifier: int
    payload: str | None
    headers: str | None
    coalesces: bool
    flush: FlushChoice
    messages: list[OutboxTable] = field(default_factory=list)
    delay_s: float | None = None
    due: datetime | None = None
    # The number of savepoints open when it was written; None before that.
    depth: int | None = None


def as_row(message: OutboxTable, *, headers: Mapping[str, Any] | None, flush: FlushChoice) -> Row:
    """Check a message's scope, category and time, and encode it."""
    scope = validated_scope(message.shard_scope, message.category)
    delay, due = _when(message)
    own_headers = message.headers if message.headers is not None else headers
    return Row(
        outbox=type(message),
        shard=tuple(int(v) if isinstance(v, int) else v for v in message.shard_key()),
        category=int(message.category),
        object_identifier=int(message.object_identifier),
        payload=as_json(type(message), "payload", message.payload, of=f"the payload of {message}"),
        headers=as_json(type(message), "headers", own_headers, of=f"the headers of {message}"),
        # A delayed message replaces nothing: the earlier one must not wait for its time.
        coalesces=scope.policy.coalesce and delay <= 0 and due is None,
        flush=flush,
        messages=[message],
        delay_s=delay if delay > 0 else None,
        due=due,
    )


def _when(message: OutboxTable) -> tuple[float, datetime | None]:
    """Return for how many seconds a message is deferred, or until when.

    Raises:
        InvalidOutboxError: the time has no time zone, or both or nonsense were given.
    """
    delay, due = message.delay, message.scheduled_for
    # What the database is to fill in: nobody gave a time.
    if isinstance(due, DatabaseDefault):
        due = None
    if delay is not None and due is not None:
        raise InvalidOutboxError(
            f"Two times for {message}: delay and scheduled_for. Give one of them."
        )
    if due is not None and (not isinstance(due, datetime) or due.utcoffset() is None):
        raise InvalidOutboxError(
            f"Wrong scheduled_for {due!r} of {message}. Give a datetime with a time zone."
        )
    if delay is None:
        return 0.0, due
    if not isinstance(delay, timedelta) or delay > MOST_DELAY:
        raise InvalidOutboxError(
            f"Wrong delay {delay!r} of {message}. Give a timedelta of at most {MOST_DELAY.days} days."
        )
    return delay.total_seconds(), None


def insert(connection: BaseDatabaseWrapper, rows: Iterable[Row]) -> None:
    """Insert rows in the open transaction, and set the messages' ids."""
    # One statement per table, in the order of the rows, so that the ids are in that order.
    tables: dict[tuple[type[OutboxTable], bool], list[Row]] = {}
    for row in rows:
        if row.due is not None:
            _insert_due(connection, row)
            continue
        tables.setdefault((row.outbox, row.delay_s is not None), []).append(row)
    for own in tables.values():
        for chunk in batched(own, MOST_PER_STATEMENT):
            _insert_chunk(connection, chunk)


def _insert_chunk(connection: BaseDatabaseWrapper, rows: Sequence[Row]) -> None:
    """Insert rows of one table, all of them delayed or none."""
    ids = _execute(connection, rows)
    # A parked row is not due, so a flush must not wait for it.
    _written(connection, rows, ids, parked=rows[0].delay_s is not None)


def _insert_due(connection: BaseDatabaseWrapper, row: Row) -> None:
    """Insert a row that is due at a time: parked, unless that is past."""
    values = (*row.shard, row.category, row.object_identifier, row.payload, row.headers)
    with engine_cursor(connection) as cursor:
        cursor.execute(_statement_due(row.outbox), (row.due, *values))
        ((identifier, parked),) = cursor.fetchall()
    _written(connection, [row], [identifier], parked=parked)


def _written(
    connection: BaseDatabaseWrapper, rows: Sequence[Row], ids: Sequence[int], *, parked: bool
) -> None:
    """Give messages their ids, and have those flushed that may run."""
    written: list[WrittenRow] = []
    for identifier, row in zip(ids, rows, strict=True):
        for message in row.messages:
            message.pk = identifier
            message._state.adding = False
            message._state.db = connection.alias
        if row.flush and not parked:
            # The cell comes first among the columns, and last in the key.
            shard, mode = ShardKey(*row.shard[-2:], *row.shard[:-2]), mode_of(row.flush)
            about = row.object_identifier
            written.append(WrittenRow(identifier, shard, row.category, about, mode))
    register(connection, Batch(rows[0].outbox, Counter(row.category for row in rows), written))


def _execute(connection: BaseDatabaseWrapper, rows: Sequence[Row]) -> list[int]:
    """Send the INSERT; return the ids, in the order of the rows."""
    outbox, delayed = rows[0].outbox, rows[0].delay_s is not None
    values = [
        (*row.shard, row.category, row.object_identifier, row.payload, row.headers, row.delay_s)
        for row in rows
    ]
    kinds = _columns(outbox, delayed=delayed)
    # Not strict: the delay, which comes last, has no column in the outbox table.
    given = dict(zip(kinds, zip(*values, strict=True), strict=False))
    # A value that all rows share is sent once, except the object, which sets the number of rows.
    common = frozenset(
        name
        for name, column in given.items()
        if len(rows) == 1
        or (name != "object_identifier" and column.count(column[0]) == len(column))
    )
    params = [column[0] for name, column in given.items() if name in common]
    params += [
        int_array(column) if kinds[name] in ("integer", "bigint") else list(column)
        for name, column in given.items()
        if name not in common
    ]
    with engine_cursor(connection) as cursor:
        cursor.execute(_statement(outbox, common, delayed=delayed), params)
        return [identifier for (identifier,) in cursor.fetchall()]


@cache
def _columns(outbox: type[OutboxTable], *, delayed: bool) -> dict[str, str]:
    columns = {column: COLUMN_TYPES[column] for column in outbox.sharding_columns} | _REST
    return columns | {"delay_s": "double precision"} if delayed else columns


@cache
def _statement(outbox: type[OutboxTable], common: frozenset[str], *, delayed: bool) -> str:
    tables, columns = table_names(outbox), _columns(outbox, delayed=delayed)
    # In the order of the parameters: first the single values, then the arrays.
    single = [f"%s::{kind} AS {name}" for name, kind in columns.items() if name in common]
    arrays = {name: kind for name, kind in columns.items() if name not in common}
    source = f"SELECT {', '.join([*single, *arrays])}"
    if arrays:
        kinds = ", ".join(f"%s::{kind}[]" for kind in arrays.values())
        source += f" FROM unnest({kinds}) AS a({', '.join(arrays)})"
    names = ", ".join(_columns(outbox, delayed=False))
    if delayed:
        # The database's clock, not the writer's, and not now(), which is the transaction's start.
        return (
            f"INSERT INTO {tables.parked} ({names}, reason, scheduled_from, scheduled_for) "  # noqa: S608 - names from the model
            f"SELECT {names}, 'delayed', clock_timestamp(), "
            f"clock_timestamp() + make_interval(secs => delay_s) FROM ({source}) AS m RETURNING id"
        )
    into = f"INSERT INTO {tables.outbox} ({names})"
    if not arrays:
        # For one row VALUES takes half the planning of a SELECT.
        return f"{into} VALUES ({', '.join(['%s'] * len(columns))}) RETURNING id"
    return f"{into} SELECT {names} FROM ({source}) AS m RETURNING id"  # noqa: S608 - names from the model


@cache
def _statement_due(outbox: type[OutboxTable]) -> str:
    """Return the INSERT into either table, as the database's clock says."""
    tables, kinds = table_names(outbox), _columns(outbox, delayed=False)
    names, values = (
        ", ".join(kinds),
        ", ".join(f"%s::{kind} AS {name}" for name, kind in kinds.items()),
    )
    return (
        f"WITH m AS (SELECT %s::timestamptz AS due, statement_timestamp() AS now, {values}), "  # noqa: S608 - names from the model
        f"late AS (INSERT INTO {tables.parked} ({names}, reason, scheduled_from, scheduled_for) "
        f"SELECT {names}, 'delayed', now, due FROM m WHERE due > now RETURNING id), "
        f"soon AS (INSERT INTO {tables.outbox} ({names}) "
        f"SELECT {names} FROM m WHERE due <= now RETURNING id) "
        f"SELECT id, true FROM late UNION ALL SELECT id, false FROM soon"
    )


def as_json(outbox: type[OutboxTable], column: str, value: Any, *, of: str) -> str | None:
    """Return a value as text for a JSON column of an outbox; None stays None.

    Dates, decimals and UUIDs become text, as in Django's own encoder.

    Raises:
        InvalidOutboxError: it is not JSON, or contains what PostgreSQL does not store.
    """
    if value is None:
        return None
    json_field: Any = outbox._meta.get_field(column)
    try:
        text = json.dumps(value, cls=json_field.encoder or DjangoJSONEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidOutboxError(
            f"Not JSON: {of}: {exc}. Use text, numbers, booleans, lists and dicts, without NaN."
        ) from exc
    # As escapes, which text may also contain by itself: looked at closely only where they are.
    if ("\\u0000" in text or "\\ud" in text) and (bad := _unstorable(json.loads(text))):
        raise InvalidOutboxError(
            f"Not storable: {of} contains {bad}, which PostgreSQL does not store. Remove it."
        )
    return text


def _unstorable(value: Any) -> str:
    """Return what PostgreSQL does not store in a JSON value, or nothing."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next(filter(None, map(_unstorable, value)), "")
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        return f"a NUL in {value!r:.80}"
    return f"a lone surrogate in {value!r:.80}" if _SURROGATE.search(value) else ""
