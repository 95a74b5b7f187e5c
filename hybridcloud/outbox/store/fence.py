"""Lets a walk by id see rows that commit late behind it: without it a position would pass them by (ENGINE 7).

Ids are drawn before they are committed, so rows appear behind a position that
has passed. No snapshot tells which: an id may be drawn before its transaction
has one. Locks do, since a writer locks the table before it draws an id.

::

    hi = newest_id(connection, table)           # 1. how far to go
    fence = Fence.take(connection, table)       # 2. who may still commit something up to there
    ...                                         # keep both; never wait inside a task
    if fence.is_open(connection):               # 3. nobody of them writes any more
        ...                                     # 4. walk (low, hi] in a new statement; low = hi

Two things are outside of it: ids that were drawn ahead of their INSERT, and
prepared transactions of former sessions. Tables that have them are walked whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

# What a session holds on a table that it has inserted into or may insert into, to its transaction's
# end. Readers hold none of these. A row may be written through a partition's own name as well.
_WRITERS: Final = """
  FROM pg_locks
 WHERE locktype = 'relation'
   AND relation IN (SELECT %(table)s::regclass::oid
                     UNION SELECT relid::oid FROM pg_partition_tree(%(table)s::regclass))
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND pid IS DISTINCT FROM pg_backend_pid()
"""
_TAKE: Final = f"SELECT array_agg(DISTINCT virtualtransaction) {_WRITERS}"
_LEFT: Final = f"{_TAKE} AND virtualtransaction = ANY(%(writers)s)"


@dataclass(frozen=True, slots=True)
class Fence:
    """Who was writing to a table at a moment; open once none of them does any more.

    Attributes:
        table: the table's name, as the model has it.
        writers: their virtual transactions, for keeping as JSON.
    """

    table: str
    writers: tuple[str, ...]

    @classmethod
    def take(cls, connection: BaseDatabaseWrapper, table: str) -> Self:
        """Remember who writes to a table, and its partitions, now.

        Call it in a statement after the one that read how far the walk shall go.
        """
        return cls(table, _writers(connection, _TAKE, table))

    @classmethod
    def kept(cls, table: str, writers: Iterable[str]) -> Self:
        """Return a fence that was taken before, by its writers as they were kept."""
        return cls(table, tuple(writers))

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Say whether all that they wrote is committed or gone; a walk may begin in a new statement."""
        return not self.left(connection)

    def left(self, connection: BaseDatabaseWrapper) -> tuple[str, ...]:
        """Return those who still write: none, once the fence is open."""
        if not self.writers:
            return ()
        return _writers(connection, _LEFT, self.table, self.writers)


def newest_id(connection: BaseDatabaseWrapper, table: str, *, column: str = "id") -> int | None:
    """Return the largest committed id of a table; None where it is empty."""
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT max({quote(column)}) FROM {quote(table)}")  # noqa: S608 - names of a model
        (newest,) = cursor.fetchone()
    return None if newest is None else int(newest)


def _writers(
    connection: BaseDatabaseWrapper, statement: str, table: str, among: Iterable[str] = ()
) -> tuple[str, ...]:
    params: dict[str, Any] = {"table": connection.ops.quote_name(table), "writers": list(among)}
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        (found,) = cursor.fetchone()
    return tuple(sorted(found or ()))
