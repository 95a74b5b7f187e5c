"""Keeps each backfill's position in the database, and shows it in Redis.

The database decides: its position is committed with the messages of each batch.
Redis (``outbox_backfill.<table>``, JSON ``[lower_bound_id, version]``) holds a
copy for people to look at. The copy is never trusted; it is corrected when the
position is read and after each batch.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections
from django.db.models import Func, QuerySet

from hybridcloud.backfill import statements
from hybridcloud.backfill.versions import find_model, in_silo_of
from hybridcloud.redis import shared_redis
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

_LOG = logging.getLogger("hybridcloud.backfill")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A backfill's position as read from the database; see `BackfillCursor`.

    Attributes:
        used: messages that the backfill wrote in the last minute.
    """

    table: str
    low_bound: int
    version: int
    started: bool
    upto: int | None
    writers: tuple[str, ...] | None
    row_count: int
    message_count: int
    rows_expected: int | None
    used: int
    began_at: datetime | None
    done_at: datetime | None
    updated_at: datetime

    @classmethod
    def of_row(cls, row: Any) -> Cursor:
        """Build it from the columns of a statement."""
        values: list[Any] = list(row)
        values[5] = None if row[5] is None else tuple(json.loads(row[5]))
        return cls(*values)


def get_processing_state(table_name: str) -> tuple[int, int]:
    """Return ``(lower_bound_id, version)`` of a table's backfill.

    ``(0, 1)``: never run, created by the first read; ``(last + 1, target)``: under
    way; ``(0, target + 1)``: done.

    Raises:
        LookupError: no producing model has the table.
    """
    model = find_model(table_name)
    with in_silo_of(model):
        cursor = read(alias_for_model(model), table_name)
    show(cursor)
    return cursor.low_bound, cursor.version


def set_processing_state(table_name: str, value: int, version: int) -> None:
    """Set the position of a table's backfill, in the database and in Redis.

    It is set whatever state the backfill is in.

    Args:
        table_name: the table.
        value: the lowest id that is not walked yet; 0: from the lowest id on.
        version: the version to walk.

    Raises:
        LookupError: no producing model has the table.
    """
    model = find_model(table_name)
    with in_silo_of(model):
        alias = alias_for_model(model)
        read(alias, table_name)
        _rows(alias).filter(table=table_name).update(
            low_bound=value, version=version, started=value != 0, **_nothing_walked()
        )
        cursor = read(alias, table_name)
    show(cursor)


def read(alias: str, table: str) -> Cursor:
    """Return a table's cursor, created if it does not exist."""
    found = read_all(alias, [table])
    if not found:
        model = apps.get_model("hybridcloud", "BackfillCursor")
        _rows(alias).bulk_create([model(table=table)], ignore_conflicts=True)
        found = read_all(alias, [table])
    return found[table]


def read_all(alias: str, tables: Collection[str]) -> Mapping[str, Cursor]:
    """Return the cursors of those of these tables that have one."""
    with connections[alias].cursor() as sql:
        sql.execute(statements.READ, [list(tables)])
        return {row[0]: Cursor.of_row(row) for row in sql.fetchall()}


def begin_again(alias: str, cursor: Cursor, version: int) -> Cursor | None:
    """Start a higher version; None if another process moved the cursor."""
    return _move(alias, cursor, low_bound=0, version=version, started=False, **_nothing_walked())


def hold_at(alias: str, cursor: Cursor, writers: Collection[str]) -> Cursor | None:
    """Store a coming walk's fence; None if another process moved the cursor."""
    return _move(alias, cursor, writers=list(writers))


def let_go(alias: str, cursor: Cursor, *, upto: int, expected: int) -> Cursor | None:
    """Note that the fence is open and how far the walk goes.

    Returns:
        The cursor; None if another process moved it.
    """
    walked = {} if cursor.started else {"row_count": 0, "message_count": 0}
    more = {"rows_expected": expected, "began_at": _clock(), "done_at": None}
    return _move(alias, cursor, upto=upto, **more, **walked)


def finish(alias: str, cursor: Cursor) -> Cursor | None:
    """Mark a version as done without walking a row.

    Returns:
        The cursor; None if another process moved it.
    """
    return _move(
        alias,
        cursor,
        low_bound=0,
        version=cursor.version + 1,
        started=False,
        **{**_nothing_walked(), "done_at": _clock()},
    )


def show(cursor: Cursor) -> None:
    """Copy a position to Redis, if there is one.

    A failure does no harm, because the database decides.
    """
    if (redis := shared_redis()) is not None:
        redis.put(redis_key(cursor.table), json.dumps([cursor.low_bound, cursor.version]))


def redis_key(table: str) -> str:
    """Return the Redis key that shows a table's position."""
    return f"outbox_backfill.{table}"


def _move(alias: str, cursor: Cursor, **columns: Any) -> Cursor | None:
    rows = _rows(alias).filter(
        table=cursor.table,
        low_bound=cursor.low_bound,
        version=cursor.version,
        started=cursor.started,
        upto__isnull=cursor.upto is None,
        writers__isnull=cursor.writers is None,
    )
    if not rows.update(**columns, updated_at=_clock()):
        return None
    return read(alias, cursor.table)


def _nothing_walked() -> dict[str, Any]:
    return {
        "upto": None,
        "writers": None,
        "row_count": 0,
        "message_count": 0,
        "rows_expected": None,
        "began_at": None,
        "done_at": None,
    }


def _clock() -> Func:
    return Func(function="clock_timestamp")


def _rows(alias: str) -> QuerySet[Any]:
    model = apps.get_model("hybridcloud", "BackfillCursor")
    return model._base_manager.using(alias).all()
