"""Buffers the messages of a block for one INSERT at its end.

A savepoint that rolls back drops its messages, and a read of the outbox table inside the block
finds what was saved so far. The buffer notices both in the connection's statements.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from hybridcloud.outbox.store.tables import table_names
from hybridcloud.outbox.write.insert import MOST_PER_STATEMENT, Row, insert

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

# Behind comments, which users and their packages put in front of statements.
_SAVEPOINT: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
    r'(SAVEPOINT|RELEASE|ROLLBACK\s+TO)\s+(?:SAVEPOINT\s+)?"?([^"\s;]+)',
    re.IGNORECASE | re.DOTALL,
)


class Buffer:
    """The messages of one `outbox_context` block on one connection."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.is_open = True
        self._rows: list[Row] = []
        # The name of each open savepoint, and how many rows were buffered before it.
        self._savepoints: list[tuple[str, int]] = []
        self._tables: set[str] = set()
        self._writing = False

    def add(self, rows: Sequence[Row]) -> None:
        """Buffer rows until the block ends or the table is read."""
        self._rows += rows
        for outbox in {row.outbox for row in rows}:
            names = table_names(outbox)
            # Without quotes, since statements that are not Django's may have none.
            self._tables |= {names.outbox.strip('"'), names.parked.strip('"')}
        # Limits the memory of a long block outside of savepoints.
        if len(self._rows) > MOST_PER_STATEMENT:
            self.write()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Watch the connection, and write what is left unless the block fails."""
        wrappers = self.connection.execute_wrappers
        # Outermost: it sees Django's own text, whatever other wrappers make of it.
        wrappers.insert(0, self._watch)
        try:
            yield
            # A change whose message cannot be written must not commit.
            with transaction.mark_for_rollback_on_error(using=self.connection.alias):
                self.write()
        finally:
            self.is_open = False
            wrappers.remove(self._watch)

    def write(self) -> None:
        """Insert what is not in the table yet, unless the transaction is lost."""
        pending = [row for row in self._rows if row.depth is None]
        if not pending or self.connection.needs_rollback:
            return
        self._writing = True
        try:
            insert(self.connection, _newest(pending))
        finally:
            self._writing = False
        for row in pending:
            row.depth = len(self._savepoints)
        if not self._savepoints:
            # No savepoint of the block can roll these back any more.
            self._rows.clear()

    def _watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        # The buffer's own INSERT names the table as well.
        if self._writing:
            return execute(sql, params, many, context)
        text = sql.decode() if isinstance(sql, bytes) else sql
        if not isinstance(text, str):
            # One of psycopg's, such as `sql.SQL`.
            text = text.as_string(self.connection.connection)
        # Rows are written before a statement that reads them. A savepoint is followed after its
        # statement, since one that fails changes nothing.
        if self._rows and any(name in text for name in self._tables):
            self.write()
        result = execute(sql, params, many, context)
        match = _SAVEPOINT.match(text)
        if match is not None:
            self._follow(match[1].upper(), match[2])
        return result

    def _follow(self, verb: str, name: str) -> None:
        """Apply a savepoint statement to the buffer."""
        if verb == "SAVEPOINT":
            self._savepoints.append((name, len(self._rows)))
            return
        # The innermost one of this name is meant, as in PostgreSQL.
        found = [i for i, (each, _) in enumerate(self._savepoints) if each == name]
        at = found[-1] if found else None
        if verb == "RELEASE":
            if at is not None:
                del self._savepoints[at:]
                # What was inside it now belongs to the savepoint around it.
                for row in self._rows:
                    row.depth = None if row.depth is None else min(row.depth, at)
            return
        # Unknown means older than the block: everything in the block is rolled back.
        kept, depth = (0, 0) if at is None else (self._savepoints[at][1], at + 1)
        del self._savepoints[depth:]
        del self._rows[kept:]
        for row in self._rows:
            # Buffered before the savepoint but inserted after it: the insert was rolled back.
            if row.depth is not None and row.depth >= depth:
                row.depth = None


def _newest(rows: Sequence[Row]) -> list[Row]:
    """Keep only the last of the rows that replace one another, in its place."""
    last: dict[tuple[Any, ...], Row] = {}
    kept: list[Row] = []
    for row in reversed(rows):
        key = (row.outbox, *row.shard, row.category, row.object_identifier)
        newer = last.setdefault(key, row) if row.coalesces else row
        if newer is row:
            kept.append(row)
        else:
            # Their instances get the id of the row that is written, and one flush is enough.
            newer.messages += row.messages
            newer.flush = newer.flush or row.flush
    return kept[::-1]
