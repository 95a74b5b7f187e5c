"""A wrapper around every connection that refuses statements across silos.

No transaction spans two silos: a write to one silo's database, inside a block that is open only on
another's, commits at once, even if that block rolls back. The guard decides by three facts alone:
the alias, the verb and the open blocks.

It cannot see statements that bypass Django's cursors (psycopg's COPY, a raw driver cursor).
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
# Only short statements are cached: long ones contain values and rarely recur.
_SHORT = 4000
# FOR UPDATE is a lock, not a write. ON CONFLICT DO UPDATE follows an INSERT, which matches anyway.
_WRITE_INSIDE = re.compile(
    r"\b(?:INSERT\s+INTO|(?<!FOR )(?<!KEY )UPDATE|DELETE\s+FROM|MERGE\s+INTO)\b", re.IGNORECASE
)

#: The number of blocks, by alias, that the caller had open at the simulated process boundary.
_beyond_boundary: ContextVar[Mapping[str, int] | None] = ContextVar(
    "silos_beyond_boundary", default=None
)


def open_blocks(connection: BaseDatabaseWrapper) -> int:
    """Count a connection's open atomic blocks, except a test case's own."""
    return sum(not _is_testcase(block) for block in connection.atomic_blocks)


def is_testcase_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether only a test case's own blocks are open, at least one."""
    blocks = connection.atomic_blocks
    return bool(blocks) and all(_is_testcase(block) for block in blocks)


@contextmanager
def process_boundary() -> Iterator[None]:
    """Make the guard ignore the caller's open transactions inside the block.

    For a call into another silo that a real deployment makes over the network: there the callee
    runs in another process and has no part in the caller's transactions.
    """
    hidden = {each.alias: open_blocks(each) for each in connections.all(initialized_only=True)}
    token = _beyond_boundary.set(hidden)
    try:
        yield
    finally:
        _beyond_boundary.reset(token)


def install() -> None:
    """Guard every existing and future connection; safe to call twice."""
    connection_created.connect(_guard_new_connection, dispatch_uid="silos.guard")
    for connection in connections.all(initialized_only=True):
        _guard_connection(connection)


def _guard_new_connection(*, connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    _guard_connection(connection)


def _guard_connection(connection: BaseDatabaseWrapper) -> None:
    # At the front, because `connection.execute_wrapper()` pops its own wrapper from the end.
    if guarded not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, guarded)


def guarded(
    execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: dict[str, Any]
) -> Any:
    """Run a statement unless it is refused; an execute wrapper."""
    connection: BaseDatabaseWrapper = context["connection"]
    aliases = silo_aliases()
    if len(aliases) > 1 and connection.alias in aliases:
        _refuse_other_silo(connection, sql)
        _refuse_lone_write(connection, sql, aliases)
    return execute(sql, params, many, context)


def _refuse_other_silo(connection: BaseDatabaseWrapper, sql: Any) -> None:
    """Refuse data statements on another silo's alias than the entered one.

    Such statements come from `.using()` or from a cursor, which the router does not see.
    """
    own = assumed_alias()
    if own is None or own == connection.alias:
        return
    word = _first_word(_text(connection, sql))
    # Savepoints, SET and DDL pass: blocks opened before the silo was entered must be able to end.
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
    """Refuse a write while blocks are open only on other silos' databases."""
    # The cheap questions first: most statements are reads or run in a block of their own alias.
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
        f"persist if that transaction rolled back. Open atomic(using={connection.alias!r}) too, "
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
    # psycopg's composed SQL.
    return str(sql.as_string(connection.connection))
