"""Makes the databases of the benchmarks, and prepares their tables."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, connections, transaction
from psycopg.errors import LockNotAvailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTROL = "control"
US = "cell_us"
ALIASES = (CONTROL, US)
PEER_DATABASE = "bench_peer"
_ATTEMPTS = 600
_LOCK_TIMEOUT_MS = 50
"""Less than deadlock_timeout, after which PostgreSQL would choose a victim."""


@contextmanager
def databases() -> Iterator[None]:
    """Make test databases for control and one cell, and drop them at the end."""
    made = []
    try:
        for alias in ALIASES:
            creation = connections[alias].creation
            name = str(connections[alias].settings_dict["NAME"])
            creation.create_test_db(verbosity=0, autoclobber=True)
            made.append((creation, name))
        yield
    finally:
        connections.close_all()
        for creation, name in made:
            creation.destroy_test_db(name, verbosity=0)


def dsn(alias: str, *, name: str | None = None) -> str:
    """Return the URL of an alias's database, or of another one on its server."""
    conf = connections[alias].settings_dict
    port = f":{conf['PORT']}" if conf["PORT"] else ""
    login = f"{conf['USER']}:{conf['PASSWORD']}@" if conf["USER"] else ""
    return f"postgresql://{login}{conf['HOST']}{port}/{name or conf['NAME']}"


def environment() -> Mapping[str, str]:
    """Return the environment in which a child finds these databases."""
    urls = {f"DATABASE_URL_{alias.upper()}": dsn(alias) for alias in ALIASES}
    return {**os.environ, **urls, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"}


def execute(sql: str, params: Any = None, *, alias: str = US) -> list[tuple[Any, ...]]:
    """Run SQL on an alias's database and return its rows."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


def empty(*tables: str, alias: str = US) -> None:
    """Empty tables, without messages about their rows.

    Ids go on, since drainers remember them. If a drainer still works on the tables, this gives way
    and tries again: otherwise one of the two would meet a deadlock, or the next run would begin
    with the wait for the drainer.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with transaction.atomic(using=alias):
                execute("SET LOCAL hybridcloud.truncate = allowed", alias=alias)
                execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_MS}ms'", alias=alias)
                execute(f"TRUNCATE {', '.join(tables)}", alias=alias)
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable) or attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def settle(*tables: str, alias: str = US) -> None:
    """Vacuum and analyze, so that each run begins with good statistics.

    In production autovacuum would have done so by now. The checkpoint keeps the filling's
    writes out of the measurement.
    """
    for table in tables:
        execute(f"VACUUM ANALYZE {table}", alias=alias)
    execute("CHECKPOINT", alias=alias)
