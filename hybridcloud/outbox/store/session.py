"""The session that runs the engine's SQL.

A call of `Engine.run` is one round trip and one transaction, however many statements it holds,
with pinned plans, since the statistics of a queue are always of another moment. The texts are in ``sql/*.sql``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from django.db import InterfaceError, OperationalError, connections
from django.db.backends.utils import CursorDebugWrapper, CursorWrapper

from hybridcloud.errors import OutboxTransactionError
from hybridcloud.outbox.store.tables import table_names
from hybridcloud.outbox.store.templates import sql
from silos.guard import guarded, is_testcase_transaction, open_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.tables import OutboxTable

type Rows = list[tuple[Any, ...]]
type Params = Mapping[str, Any]

# Whatever the session's default is: a statement must see what was committed before it began.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; "
_PINS_BY_ID: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
# No JIT either: forbidden plans are priced at millions, for which PostgreSQL would compile each of
# these small statements, 300 ms a call.
_PINS: Final = f"{_PINS_BY_ID}SET LOCAL enable_sort = off; SET LOCAL jit = off; "
_RELAXED: Final = "SET LOCAL synchronous_commit = off; "
NO_BOUND: Final = 2**63 - 1
_DEADLOCK: Final = "40P01"
_KEPT: Final = "_hybridcloud_cursor"


def int_array(values: Iterable[int]) -> str:
    """Return integers as the text of an array parameter."""
    # A seventh of the time that psycopg takes for a list.
    return f"{{{','.join(map(str, values))}}}"


class Engine:
    """The statements of one outbox table on one database."""

    def __init__(self, outbox: type[OutboxTable], alias: str) -> None:
        self.outbox = outbox
        self.alias = alias
        self.tables = table_names(outbox)

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection to the database."""
        return connections[self.alias]

    @property
    def in_testcase(self) -> bool:
        """Whether the open transaction is a test case's own."""
        connection = self.connection
        return bool(connection.in_atomic_block) and is_testcase_transaction(connection)

    def refuse_transaction(self, what: str) -> None:
        """Raise OutboxTransactionError in a block that is not a test case's own."""
        if open_blocks(self.connection):
            raise OutboxTransactionError(
                f"Transaction open on {self.alias!r} while {what} of {self.tables.label} was asked "
                f"for: handlers would run inside it. Leave the atomic block first, or let "
                f"outbox_context(transaction.atomic()) flush after its commit."
            )

    def keys(self, keys: Sequence[ShardKey]) -> dict[str, Any]:
        """Return shard keys as the array parameters of a statement."""
        params: dict[str, Any] = {
            "key_shard_scope": int_array([key.scope for key in keys]),
            "key_shard_identifier": int_array([key.identifier for key in keys]),
        }
        if "cell_name" in self.tables.sharding_columns:
            params["key_cell_name"] = [key.cell for key in keys]
        return params

    def sql(self, name: str, *, one: bool = False, off: bool = True, **more: str) -> str:
        """Return a named statement for this table; see `sql`."""
        return sql(self.tables, name, one=one, off=off, **more)

    def query(
        self, name: str, params: Params, *, one: bool = False, off: bool = True, **more: str
    ) -> Rows:
        """Run one named statement with pinned plans and return its rows."""
        results = self.results([self.sql(name, one=one, off=off, **more)], params)
        return results[-1] if results else []

    def run(
        self,
        statements: Sequence[str],
        params: Params,
        *,
        relaxed: bool = False,
        by_id: bool = False,
    ) -> None:
        """Run statements in one transaction and one round trip, all or none.

        ``relaxed`` commits without waiting for the disk; only for acknowledgements and releases
        (rule 2). ``by_id`` forbids fewer plans: rows are found by the primary key alone.
        """
        settings = f"{_PINS_BY_ID if by_id else _PINS}{_RELAXED if relaxed else ''}"
        self._insist(statements, params, settings, rows=False)

    def results(self, statements: Sequence[str], params: Params) -> list[Rows]:
        """Do what `run` does; return the rows of each statement with rows."""
        return self._insist(statements, params, _PINS, rows=True)

    def _insist(
        self, statements: Sequence[str], params: Params, settings: str, *, rows: bool
    ) -> list[Rows]:
        try:
            return self._attempt(statements, params, settings, rows=rows)
        except (OperationalError, InterfaceError) as exc:
            # The session was lost between handlers, or the statement was a deadlock's victim. It is
            # safe to repeat, since it names exact ids and tokens (rule 6).
            if self.connection.in_atomic_block:
                raise
            if not self.connection.is_usable():
                self.connection.close()
            elif getattr(exc.__cause__, "sqlstate", None) != _DEADLOCK:
                raise
            return self._attempt(statements, params, settings, rows=rows)

    def _attempt(
        self, statements: Sequence[str], params: Params, settings: str, *, rows: bool
    ) -> list[Rows]:
        connection = self.connection
        if connection.in_atomic_block or _binds_on_server(connection):
            return _one_by_one(connection, statements, params)
        cursor = _kept_cursor(connection)
        try:
            cursor.execute(f"{_BEGIN}{settings}{'; '.join(statements)}; COMMIT", params)
        except BaseException:
            if connection.connection is not None and not connection.connection.closed:
                connection.connection.rollback()
            raise
        return _results(cursor) if rows else []

    def snapshot(self) -> _Snapshot:
        """Open a read-only transaction whose statements see the same moment."""
        return _Snapshot(self)


class _Snapshot:
    """A read-only transaction for the outbox and parked rows of shards.

    A message that is brought back between two reads of different moments would be seen by neither,
    and a newer one of its object would be handled before it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open = not engine.connection.in_atomic_block

    def __enter__(self) -> Self:
        if self._open:
            text = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_PINS}".rstrip("; ")
            connection = self._engine.connection
            # Bound on the server, a text may be prepared, and then it must be one statement.
            parts = text.split("; ") if _binds_on_server(connection) else [text]
            with engine_cursor(connection) as cursor:
                for part in parts:
                    cursor.execute(part)
        return self

    def __exit__(self, *_: object) -> None:
        connection = self._engine.connection.connection
        if self._open and connection is not None and not connection.closed:
            connection.rollback()

    def query(self, name: str, params: Params) -> Rows:
        """Run one named statement and return its rows."""
        with engine_cursor(self._engine.connection) as cursor:
            cursor.execute(self._engine.sql(name), params)
            rows: Rows = cursor.fetchall()
            return rows


class _PastWrappers:
    """A cursor of the engine, whose statements users' wrappers do not see.

    A wrapper may put another statement in front, which ends the engine's transactions, or takes
    the place of its results. The guard between silos stays, and so does the log of queries.
    """

    db: BaseDatabaseWrapper

    def _execute_with_wrappers(self, sql: Any, params: Any, many: Any, executor: Any) -> Any:
        return guarded(executor, sql, params, many, {"connection": self.db, "cursor": self})


class _EngineCursor(_PastWrappers, CursorWrapper):
    pass


class _EngineDebugCursor(_PastWrappers, CursorDebugWrapper):
    pass


def engine_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Open a cursor for statements of the engine."""
    made = connection.cursor()
    is_logged = isinstance(made, CursorDebugWrapper)
    made.__class__ = _EngineDebugCursor if is_logged else _EngineCursor
    return made


def _binds_on_server(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict["OPTIONS"].get("server_side_binding"))


def _one_by_one(
    connection: BaseDatabaseWrapper, statements: Sequence[str], params: Params
) -> list[Rows]:
    found: list[Rows] = []
    with engine_cursor(connection) as cursor:
        for statement in statements:
            cursor.execute(statement, params)
            if cursor.description:
                found.append(cursor.fetchall())
    return found


def _kept_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Return the session's cursor, which is made once."""
    # To make one takes longer than PostgreSQL takes to parse many of the statements.
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_thread_sharing()
    kept = vars(connection).get(_KEPT)
    if kept is None or kept.connection is not connection.connection or kept.closed:
        with connection.wrap_database_errors:
            kept = vars(connection)[_KEPT] = connection.create_cursor()
    make = _EngineDebugCursor if connection.queries_logged else _EngineCursor
    return make(kept, connection)


def _results(cursor: Any) -> list[Rows]:
    # Past Django's wrapper and psycopg's description, which cost as much for a SET as for rows.
    found = cursor.cursor
    results: list[Rows] = []
    while True:
        if found.pgresult.nfields:
            results.append(found.fetchall())
        if not found.nextset():
            return results
