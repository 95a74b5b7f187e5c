"""Has the statement that changes rows write their messages as well.

A sink rides on Django's query object: its compiler wraps the finished statement, whatever that
looks like, and its cursor takes out what the messages' INSERT returned.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from django.db.models import Model, QuerySet, sql

from hybridcloud.causation import current_headers
from hybridcloud.errors import OutboxError
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.declare.identifiers import shard_field
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.tables import quoted, table_names
from hybridcloud.outbox.write.after_commit import Batch, WrittenRow, mode_of
from hybridcloud.outbox.write.context import flush_choice
from hybridcloud.outbox.write.insert import as_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.after_commit import Flush
    from hybridcloud.outbox.write.mixins import ProducingModel

_OURS: Final = ("hc_id", "hc_shard", "hc_object")


class Sink:
    """The messages of one statement of a model.

    ``scope`` is the model's `scope_for_sql`. A retired category raises `InvalidOutboxError`.

    Attributes:
        batch: the messages, once they are written.
    """

    def __init__(
        self, model: type[ProducingModel], scope: OutboxScope, *, one_row: bool, flush: Flush
    ) -> None:
        validated_scope(scope.value, model.category.value)
        self.batch: Batch | None = None
        self._model = model
        self._scope = scope
        self._one_row = one_row
        self._flush = flush_choice(model.default_flush if flush is None else flush)
        self._outbox = model.outbox_model()
        self._open = 0

    def is_for(self, model: type[Model]) -> bool:
        """Say whether the statement is on a model's table, and not written yet."""
        return self.batch is None and model._meta.db_table == self._model._meta.db_table

    def wrap(self, text: str, params: Any, *, returning: bool) -> tuple[str, tuple[Any, ...]]:
        """Return a statement of Django's with the INSERT of its messages.

        ``returning`` is whether it has a RETURNING clause already.
        """
        columns, messages = _texts(self._model, self._scope, self._outbox)
        rows = f"WITH hc_row AS ({text}{',' if returning else ' RETURNING'} {columns})"
        if self._one_row:
            # With the row, so that Django finds what it asked to be returned.
            wrapped = f"{rows}, hc_message AS ({messages}) SELECT * FROM hc_row, hc_message"  # noqa: S608 - texts of Django and ours
        else:
            # In the order of the objects, as `_locked` of `bulk_update` gives them their ids.
            wrapped = f"{rows} {messages}"
        headers = as_json(self._outbox, "headers", current_headers(), of="the headers")
        self._open += 1
        own = (self._scope.value, self._model.category.value, headers)
        return wrapped, (*params, *own)

    def take(self, cursor: Any) -> list[tuple[Any, ...]]:
        """Take the messages out of what a statement returned; return the rest.

        Raises:
            OutboxError: nothing of ours came back.
        """
        self._open -= 1
        # Not the first result, where a wrapper has put another statement in front.
        while not _is_ours(cursor.description):
            if not cursor.nextset():
                raise OutboxError(
                    f"Messages not written: the statement for {self._model._meta.label} came back "
                    f"without them. Look for an execute_wrapper that replaces or skips statements."
                )
        width = len(cursor.description) - len(_OURS)
        rows = cursor.fetchall()
        self._add([row[width:] for row in rows])
        return [row[: max(0, width - 2)] for row in rows] if self._one_row else []

    def close(self, *, changed: bool) -> None:
        """Make sure that what was compiled was executed, and wrote messages.

        Raises:
            OutboxError: it was not; in a transaction, that must not commit.
        """
        if self._open or (changed and self.batch is None):
            raise OutboxError(
                f"Messages not written: {self._model._meta.label} was changed by a statement that "
                f"did not carry them. Look for a compiler or queryset that builds its own."
            )

    def _add(self, written: list[tuple[Any, ...]]) -> None:
        if not written:
            return
        scope, category = self._scope.value, self._model.category.value
        rows = [
            WrittenRow(identifier, ShardKey(scope, shard), category, about, mode_of(self._flush))
            for identifier, shard, about in (written if self._flush else ())
        ]
        self.batch = Batch(self._outbox, Counter({category: len(written)}), rows)


def _is_ours(description: Any) -> bool:
    return bool(description) and tuple(column[0] for column in description[-3:]) == _OURS


@cache
def _texts(
    model: type[ProducingModel], scope: OutboxScope, outbox: type[OutboxTable]
) -> tuple[str, str]:
    """Return the columns that make a message, and its INSERT."""
    shard, pk, table = shard_field(scope, model), model._meta.pk, model._meta.db_table
    # As Django quotes it, by which a table may be of another schema: 'apart"."table'.
    table = table if table.startswith('"') and table.endswith('"') else f'"{table}"'
    columns = ", ".join(
        f"{table}.{quoted(str(field and field.column))} AS {name}"
        for field, name in ((pk, "hc_about"), (shard, "hc_of"))
    )
    messages = (
        f"INSERT INTO {table_names(outbox).outbox} (shard_scope, shard_identifier, category, "  # noqa: S608 - names from the model
        f"object_identifier, headers) SELECT %s::integer, hc_of, %s::integer, hc_about, %s::jsonb "
        f"FROM hc_row ORDER BY hc_about "
        f"RETURNING id AS hc_id, shard_identifier AS hc_shard, object_identifier AS hc_object"
    )
    return columns, messages


class Telling(NamedTuple):
    """Rows of which a save or a bulk operation tells; the sink if SQL does."""

    rows: frozenset[int]
    sink: Sink | None


_telling: ContextVar[tuple[Telling, ...]] = ContextVar("hybridcloud_telling", default=())


@contextmanager
def telling(rows: Collection[Model], sink: Sink | None = None) -> Iterator[None]:
    """Say that the caller tells of what a block writes of these rows."""
    token = _telling.set((*_telling.get(), Telling(frozenset(map(id, rows)), sink)))
    try:
        yield
    finally:
        _telling.reset(token)


def is_told(row: Model) -> bool:
    """Say whether a caller tells of an instance that is being saved."""
    # By identity: a hook that runs with a save may write other rows, also equal ones.
    return any(id(row) in each.rows for each in _telling.get())


def sink_of(model: type[Model]) -> Sink | None:
    """Return the sink of the save that Django is in, if it is of this table."""
    # The innermost alone: nothing else runs between a combined save and its statement.
    found = _telling.get()[-1:]
    sink = found[0].sink if found else None
    return sink if sink is not None and sink.is_for(model) else None


def attach(query: Any, sink: Sink) -> Any:
    """Have a query's statement carry a sink; return the query."""
    kind: Any = type(query)
    query.__class__ = _sinking_query(kind)
    query.sink = sink
    return query


class Carrying[M: Model](QuerySet[M]):
    """A queryset through whose two doors Django saves instances."""

    def _insert(
        self,
        objs: Any,
        fields: Any,
        returning_fields: Any = None,
        raw: Any = False,  # noqa: FBT002 - Django's signature
        using: Any = None,
        **conflicts: Any,
    ) -> Any:
        sink = sink_of(self.model)
        if sink is None:
            insert = super()._insert  # type: ignore[misc]
            return insert(objs, fields, returning_fields, raw, using, **conflicts)
        # As Django does, but for the sink.
        query = sql.InsertQuery(self.model, **conflicts)
        query.insert_values(fields, objs, raw=raw)
        return (
            attach(query, sink).get_compiler(using=using or self.db).execute_sql(returning_fields)
        )

    _insert.alters_data = True  # type: ignore[attr-defined]
    _insert.queryset_only = False  # type: ignore[attr-defined]

    def _update(self, *values: Any, **more: Any) -> Any:
        sink = sink_of(self.model)
        if sink is None:
            return super()._update(*values, **more)  # type: ignore[misc]
        carrying = self.all()
        attach(carrying.query, sink)
        return super(Carrying, carrying)._update(*values, **more)  # type: ignore[misc]

    _update.alters_data = True  # type: ignore[attr-defined]
    _update.queryset_only = False  # type: ignore[attr-defined]


class _Sinking:
    """What a query class with a sink does in another way."""

    sink: Sink

    def chain(self, klass: Any = None) -> Any:
        made = super().chain(klass)  # type: ignore[misc]
        # The change itself; a subquery of it, which selects its rows, carries nothing.
        if klass is not None and issubclass(klass, sql.UpdateQuery):
            return attach(made, self.sink)
        return made

    def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
        compiler = super().get_compiler(*args, **kwargs)  # type: ignore[misc]
        if not isinstance(self, sql.InsertQuery | sql.UpdateQuery):
            return compiler
        kind: Any = type(compiler)
        compiler.__class__ = _sinking_compiler(kind)
        compiler.sink = self.sink
        compiler.connection = _Connection(compiler.connection, self.sink)
        return compiler


@cache
def _sinking_query(kind: Any) -> Any:
    return kind if issubclass(kind, _Sinking) else type(kind.__name__, (_Sinking, kind), {})


class _Compiling:
    """What a compiler with a sink does in another way."""

    sink: Sink
    returning_fields: Any

    def as_sql(self) -> Any:
        made = super().as_sql()  # type: ignore[misc]
        returning = bool(self.returning_fields)
        if isinstance(made, list):
            return [self.sink.wrap(*each, returning=returning) for each in made]
        return self.sink.wrap(*made, returning=returning) if made[0] else made


@cache
def _sinking_compiler(kind: Any) -> Any:
    return type(kind.__name__, (_Compiling, kind), {"returning_fields": None})


class _Connection:
    """A connection whose cursors take a sink's messages from their results."""

    def __init__(self, connection: BaseDatabaseWrapper, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> Any:
        return _Cursor(self._connection.cursor(), self._sink)


class _Cursor:
    def __init__(self, cursor: Any, sink: Sink) -> None:
        self._cursor = cursor
        self._sink = sink
        self._rows: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def __enter__(self) -> Self:
        self._cursor.__enter__()
        return self

    def __exit__(self, *exception: object) -> Any:
        return self._cursor.__exit__(*exception)

    def execute(self, text: str, params: Any = None) -> None:
        self._cursor.execute(text, params)
        self._rows = self._sink.take(self._cursor)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows
