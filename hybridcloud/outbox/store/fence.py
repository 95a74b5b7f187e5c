"""A fence lets a walk by id see rows that commit late behind it (rule 6).

Ids are drawn before they are committed, so rows can appear behind a position that the walk has
reached. Snapshots do not show which, since an id may be drawn before its transaction has one.
Locks do: a writer locks the table before it draws an id.

::

    hi = newest_id(connection, table)           # 1. how far to go
    fence = Fence.take(connection, table)       # 2. who may still commit a row up to there
    ...                                         # keep both; never wait inside a task
    if fence.is_open(connection):               # 3. all of them have ended
        ...                                     # 4. walk (low, hi] in a new statement; low = hi

It does not cover ids drawn ahead of their INSERT, nor prepared transactions of former sessions.
Tables with either are walked whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from hybridcloud.outbox.store.session import engine_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

# A session that inserted into a table holds one of these locks on it to its transaction's end, and a
# reader holds none. A row may be written through a partition's own name as well.
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


class Fence(NamedTuple):
    """The transactions that were writing to a table; open once all ended.

    The name of the table is unquoted. The writers are virtual transaction ids, which can be stored
    as JSON.
    """

    table: str
    writers: tuple[str, ...]

    @classmethod
    def take(cls, connection: BaseDatabaseWrapper, table: str) -> Self:
        """Return a fence of the transactions that are writing to a table now.

        Read how far the walk is to go first, in an earlier statement.
        """
        return cls(table, _writers(connection, _TAKE, table))

    @classmethod
    def kept(cls, table: str, writers: Iterable[str]) -> Self:
        """Return a fence that was taken before, from its stored writers."""
        return cls(table, tuple(writers))

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Say whether all writers have ended; then walk in a new statement."""
        return not self.left(connection)

    def left(self, connection: BaseDatabaseWrapper) -> tuple[str, ...]:
        """Return the writers that have not ended."""
        # Later writers are left out: their ids are above where the walk ends.
        if not self.writers:
            return ()
        return _writers(connection, _LEFT, self.table, self.writers)


def newest_id(connection: BaseDatabaseWrapper, table: str, *, column: str = "id") -> int | None:
    """Return the largest committed id of a table; None if it is empty."""
    quote = connection.ops.quote_name
    with engine_cursor(connection) as cursor:
        # Reads the last entry of the column's index, however large the table is.
        cursor.execute(f"SELECT max({quote(column)}) FROM {quote(table)}")  # noqa: S608 - names of a model
        (newest,) = cursor.fetchone()
    return None if newest is None else int(newest)


def _writers(
    connection: BaseDatabaseWrapper, statement: str, table: str, among: Iterable[str] = ()
) -> tuple[str, ...]:
    quoted = connection.ops.quote_name(table)
    with engine_cursor(connection) as cursor:
        cursor.execute(statement, {"table": quoted, "writers": list(among)})
        (found,) = cursor.fetchone()
    return tuple(sorted(found or ()))
