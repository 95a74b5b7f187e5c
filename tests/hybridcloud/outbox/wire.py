"""Counts what passes between a connection and the server: without it a slow machine would hide a regression.

The client library writes a line for each protocol message to a file, so what is
counted is what really went over the wire, transaction control included.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.db import connections
from psycopg.pq import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPLETE = re.compile(r'^B\t\d+\tCommandComplete\t "(\w+)(?: 0)?(?: (\d+))?"', re.MULTILINE)
_READY = re.compile(r"^B\t\d+\tReadyForQuery", re.MULTILINE)
_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "SET", "SAVEPOINT", "RELEASE"})


@dataclass
class Traffic:
    """What passed on one connection.

    Attributes:
        round_trips: how often the client waited for the server.
        statements: statements that do work, by their verb.
        rows: rows that they gave or changed, by verb.
        commits: transactions that were committed in so many words, or changed rows by themselves.
        wal: bytes of write-ahead log that the whole server wrote meanwhile.
    """

    round_trips: int = 0
    statements: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    wal: int = 0

    def read(self, text: str) -> None:
        self.round_trips = len(_READY.findall(text))
        for verb, count in _COMPLETE.findall(text):
            if verb not in _CONTROL:
                self.statements[verb] += 1
                self.rows[verb] += int(count or 0)
        # Each stretch up to a ReadyForQuery is one round trip.
        is_open = False
        for stretch in _READY.split(text):
            verbs = [verb for verb, _ in _COMPLETE.findall(stretch)]
            changes = any(verb in {"INSERT", "UPDATE", "DELETE"} for verb in verbs)
            self.commits += verbs.count("COMMIT")
            if changes and not is_open and "BEGIN" not in verbs:
                self.commits += 1
            if {"BEGIN", "COMMIT", "ROLLBACK"} & set(verbs):
                last = [verb for verb in verbs if verb in {"BEGIN", "COMMIT", "ROLLBACK"}][-1]
                is_open = last == "BEGIN"


@contextmanager
def traffic(alias: str) -> Iterator[Traffic]:
    """Count what passes on this thread's connection inside the block; read the counts after it."""
    connection = connections[alias]
    connection.ensure_connection()
    seen = Traffic()
    before = _wal(alias)
    with tempfile.TemporaryFile("w+") as file:
        pgconn = connection.connection.pgconn
        pgconn.trace(file.fileno())
        pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield seen
        finally:
            pgconn.untrace()
        file.seek(0)
        seen.read(file.read())
    seen.wal = _wal(alias) - before


def _wal(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")
        return int(cursor.fetchone()[0])
