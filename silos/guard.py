"""Refuses statements that would cross silos; without it a transaction could seem to span two.

There is no transaction across silos: a write to one silo's database inside a block that is open
only on another's commits at once, whatever becomes of that block. The guard is a wrapper around
each connection's statements and looks at facts alone: the alias, the verb, the open blocks.

Statements that are not the ORM's own to wrap (psycopg's COPY, a raw driver cursor) pass unseen.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.signals import connection_created

from .aliases import assumed_alias, silo_aliases
from .errors import AvailabilityError, SiloTransactionError
from .mode import get_current_silo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*([A-Za-z]+)", re.DOTALL)
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"})
_MAY_WRITE = frozenset({"WITH", "BEGIN"})
_READS = frozenset({"SELECT", "TABLE", "VALUES"})
# Texts that come again and again are short: their parameters are not in them.
_SHORT = 4000
# FOR UPDATE is a lock, and ON CONFLICT DO UPDATE comes behind an INSERT that is found anyway.
_WRITE_INSIDE = re.compile(
    r"\b(?:INSERT\s+INTO|(?<!FOR )(?<!KEY )UPDATE|DELETE\s+FROM|MERGE\s+INTO)\b", re.IGNORECASE
)

#: Blocks by alias that were open on the other side of a process boundary.
_beyond_boundary: ContextVar[Mapping[str, int] | None] = ContextVar(
    "silos_beyond_boundary", default=None
)


def open_blocks(connection: BaseDatabaseWrapper) -> int:
    """Count the open atomic blocks of a connection that are not a test case's own."""
    return sum(not _is_testcase(block) for block in connection.atomic_blocks)


def is_testcase_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the connection is in a transaction, and every open block is a test case's."""
    blocks = connection.atomic_blocks
    return bool(blocks) and all(_is_testcase(block) for block in blocks)


@contextmanager
def process_boundary() -> Iterator[None]:
    """Let the guard see the block as another process would, free of the caller's transactions.

    For a call into another silo that real deployments make over the network: the transactions that
    the caller holds open are none of the callee's.
    """
    hidden = {each.alias: open_blocks(each) for each in connections.all(initialized_only=True)}
    token = _beyond_boundary.set(hidden)
    try:
        yield
    finally:
        _beyond_boundary.reset(token)


def install() -> None:
    """Guard every connection, those that exist and those to come; safe to call twice."""
    connection_created.connect(_guard_new_connection, dispatch_uid="silos.guard")
    for connection in connections.all(initialized_only=True):
        _guard_connection(connection)


def _guard_new_connection(*, connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    _guard_connection(connection)


def _guard_connection(connection: BaseDatabaseWrapper) -> None:
    # At the front: `connection.execute_wrapper()` takes its own away again from the end.
    if _guarded not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _guarded)


def _guarded(
    execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: dict[str, Any]
) -> Any:
    connection: BaseDatabaseWrapper = context["connection"]
    aliases = silo_aliases()
    if len(aliases) > 1 and connection.alias in aliases:
        _refuse_other_silo(connection, sql)
        _refuse_lone_write(connection, sql, aliases)
    return execute(sql, params, many, context)


def _refuse_other_silo(connection: BaseDatabaseWrapper, sql: Any) -> None:
    """Refuse data statements, by `.using()` or a cursor, outside the silo that was entered."""
    own = assumed_alias()
    if own is None or own == connection.alias:
        return
    word = _first_word(_text(connection, sql))
    # Savepoints, SET and DDL pass: blocks that were opened before the switch must be able to end.
    if word not in _WRITES | _MAY_WRITE | _READS:
        return
    current = get_current_silo()
    msg = (
        f"{word} on alias {connection.alias!r}, the database of another silo, from {current}, "
        f"whose alias is {own!r}. Enter the other silo with assume_silo() first."
    )
    touched = f"alias {connection.alias!r}"
    raise AvailabilityError(msg, touched=touched, current=str(current), lives_in=touched)


def _refuse_lone_write(
    connection: BaseDatabaseWrapper, sql: Any, aliases: Mapping[str, object]
) -> None:
    """Refuse a write outside a block, while blocks are open only on other silos' databases."""
    # Most statements read, or bring their own block; to ask all connections costs more than to see that.
    if not _is_write(_text(connection, sql)) or open_blocks(connection):
        return
    hidden = _beyond_boundary.get() or {}
    elsewhere = tuple(
        other.alias
        for other in connections.all(initialized_only=True)
        if other.alias in aliases
        and other is not connection
        and open_blocks(other) > hidden.get(other.alias, 0)
    )
    if not elsewhere:
        return
    shown = ", ".join(repr(alias) for alias in elsewhere)
    msg = (
        f"A write to alias {connection.alias!r} inside a transaction of {shown} only: it would "
        f"stay when that transaction rolls back. Open atomic(using={connection.alias!r}) as well, "
        "move the write out of the block, or let an outbox carry it to the other silo."
    )
    raise SiloTransactionError(msg, written=connection.alias, open_on=elsewhere)


def _is_testcase(block: Any) -> bool:
    return bool(getattr(block, "_from_testcase", False))


def _is_write(text: str) -> bool:
    return _is_known_write(text) if len(text) <= _SHORT else _has_write(text)


@lru_cache(maxsize=512)
def _is_known_write(text: str) -> bool:
    return _has_write(text)


def _has_write(text: str) -> bool:
    word = _first_word(text)
    return word in _WRITES or (word in _MAY_WRITE and _WRITE_INSIDE.search(text) is not None)


def _first_word(text: str) -> str:
    match = _FIRST_WORD.match(text)
    return match[1].upper() if match else ""


def _text(connection: BaseDatabaseWrapper, sql: Any) -> str:
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode()
    # psycopg's composed SQL
    return str(sql.as_string(connection.connection))
