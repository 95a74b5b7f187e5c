"""Has the statement that changes rows write their messages as well.

A save with its message is then one statement, and outside of a transaction its own transaction:
it takes as many round trips as a save without a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, models
from django.db.models import Field, Model
from django.db.models.signals import post_save, pre_save

from hybridcloud.causation import current_headers
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.declare.identifiers import shard_field
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.tables import quoted, table_names
from hybridcloud.outbox.write.after_commit import Batch, WrittenRow, announce
from hybridcloud.outbox.write.context import buffer_of, is_flushing
from hybridcloud.outbox.write.insert import as_json
from hybridcloud.outbox.write.messages import produce, uses_default
from silos import SiloMode
from silos.guard import open_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.mixins import ProducingModel


def scope_for_sql(model: type[ProducingModel]) -> OutboxScope | None:
    """Return the scope if SQL alone can make the model's messages."""
    # Without hooks and payload all of a message is in two columns, shard and key, of one table.
    if (
        model.silo_mode is not SiloMode.CELL
        or not model.has_default_messages()
        or not uses_default(model, "payload_for_update")
    ):
        return None
    scope = model.category.get_scope()
    return scope if _has_both_columns(model, scope) else None


@cache
def _has_both_columns(model: type[ProducingModel], scope: OutboxScope) -> bool:
    """Say whether shard and key are integers in the model's only table."""
    shard = shard_field(scope, model)
    concrete: Any = model._meta.concrete_model
    return (
        shard is not None
        and not shard.null
        and not concrete._meta.parents
        and _is_integer(shard)
        and _is_integer(concrete._meta.pk)
    )


def _is_integer(field: Any) -> bool:
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    return isinstance(field, models.IntegerField)


class Rewriter(ABC):
    """Rewrites the statement of a block that changes a model's rows.

    ``scope`` is the model's `scope_for_sql`. A retired category raises `InvalidOutboxError`.
    """

    def __init__(
        self, model: type[ProducingModel], scope: OutboxScope, connection: BaseDatabaseWrapper
    ) -> None:
        validated_scope(scope.value, model.category.value)
        self.model = model
        self.scope = scope
        self.connection = connection
        self.outbox = model.outbox_model()
        self.table = quoted(model._meta.db_table)
        self.is_flushed = is_flushing(model.default_flush)

    def __enter__(self) -> Self:
        self.connection.execute_wrappers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        # Not by `connection.execute_wrapper`, which removes the last one, even if it is another's.
        self.connection.execute_wrappers.remove(self)

    @abstractmethod
    def __call__(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Run a statement of Django's, rewritten or unchanged."""

    def parts(self, sql: str, *, order: str = "") -> tuple[str, str]:
        """Return the rows' statement as a CTE, and the INSERT of its messages.

        The first also returns ``hc_object`` and ``hc_shard``, after its own columns; the second
        the id, shard and object of each message.
        """
        columns, messages = _texts(self.model, self.scope, self.outbox, order)
        returning = "," if " RETURNING " in sql else " RETURNING"
        return f"WITH hc_row AS ({sql}{returning} {columns})", messages

    def values(self) -> tuple[Any, ...]:
        """Return the parameters of the messages' INSERT."""
        headers = as_json(self.outbox, "headers", current_headers())
        return (self.scope.value, self.model.category.value, headers)

    def batch_of(self, count: int, returned: Iterable[tuple[int, int, int]]) -> Batch:
        """Return the messages; ``returned`` are the rows of those to flush."""
        scope, category = self.scope.value, self.model.category.value
        written = [
            WrittenRow(identifier, ShardKey(scope, shard), category, about)
            for identifier, shard, about in returned
        ]
        return Batch(self.outbox, Counter({category: count}), written)


@cache
def _texts(
    model: type[ProducingModel], scope: OutboxScope, outbox: type[OutboxTable], order: str
) -> tuple[str, str]:
    """Return the columns that make a message, and its INSERT."""
    shard, pk, table = shard_field(scope, model), model._meta.pk, quoted(model._meta.db_table)
    columns = ", ".join(
        f"{table}.{quoted(str(field and field.column))} AS {name}"
        for field, name in ((pk, "hc_object"), (shard, "hc_shard"))
    )
    messages = (
        f"INSERT INTO {table_names(outbox).outbox} (shard_scope, shard_identifier, category, "  # noqa: S608 - names from the model
        f"object_identifier, headers) SELECT %s::integer, hc_shard, %s::integer, hc_object, "
        f"%s::jsonb FROM hc_row {order} RETURNING id, shard_identifier, object_identifier"
    )
    return columns, messages


class _NotCombinable(Exception):  # noqa: N818 - not an error: the save goes on in another way
    """A lone save would write more than its row; nothing was written."""


def _scope_to_combine(
    model: type[ProducingModel], save: Callable[..., None], connection: BaseDatabaseWrapper
) -> OutboxScope | None:
    """Return the message's scope if a save is only its row's own statement."""
    # A hook or receiver that runs with the save relies on a transaction, and its messages come
    # before the row's. A block that gathers messages writes them all at once, and another silo's
    # open transaction forbids a statement outside of one.
    if (
        getattr(save, "__func__", None) is Model.save
        and _is_saved_by_django_alone(model)
        and uses_default(model, "prepare_outboxes")
        and not pre_save.has_listeners(model)
        and not post_save.has_listeners(model)
        and (
            connection.in_atomic_block
            or not any(map(open_blocks, connections.all(initialized_only=True)))
        )
        and buffer_of(connection) is None
    ):
        return scope_for_sql(model)
    return None


@cache
def _is_saved_by_django_alone(model: type[ProducingModel]) -> bool:
    """Say whether a save is one INSERT or UPDATE by Django's code alone."""
    steps = ("save_base", "_save_table", "_do_insert", "_do_update")
    return all(getattr(model, step) is getattr(Model, step) for step in steps) and all(
        type(field).pre_save.__module__ == Field.__module__ for field in model._meta.concrete_fields
    )


def save_combined(instance: ProducingModel, save: partial[None], *, using: str) -> bool:
    """Save a row and its message in one statement; False if it cannot.

    Nothing was done then. ``save`` is the instance's next one by the order of bases.
    """
    model, connection = type(instance), connections[using]
    scope = _scope_to_combine(model, save.func, connection)
    if scope is None:
        return False
    row = _Row(model, scope, connection)
    try:
        with row:
            save()
    except _NotCombinable:
        return False
    finally:
        # Also after an error: outside of a transaction the row is committed by then.
        if row.batch is not None:
            announce(connection, row.batch)
    if row.batch is None:
        # Nothing was written: a model may have no column but its key.
        produce(model, [instance], using=using)
    return True


class _Row(Rewriter):
    """The rewriter of a save; ``batch`` is its message once it is written."""

    batch: Batch | None = None
    _is_running = False

    def __call__(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if self._is_running or not isinstance(sql, str) or sql.startswith("SELECT"):
            return execute(sql, params, many, context)
        if not sql.startswith((f"INSERT INTO {self.table} ", f"UPDATE {self.table} ")):
            # Outside of a transaction two statements could commit one without the other.
            if not self.connection.in_atomic_block:
                raise _NotCombinable
            return execute(sql, params, many, context)
        row, message = self.parts(sql)
        text = f"{row}, hc_message AS ({message}) SELECT hc_row.*, hc_message.* FROM hc_row, hc_message"  # noqa: S608
        # From here on the row may be committed, so a later statement must not restart the save.
        self._is_running = True
        result = execute(text, (*params, *self.values()), many, context)
        cursor = context["cursor"].cursor
        told = cursor.fetchone()
        if told is None:
            # An UPDATE that matched no row; an INSERT will follow.
            self._is_running = False
            return result
        # Django reads the row again, and ignores columns that it did not ask for.
        cursor.scroll(-1)
        self.batch = self.batch_of(1, [told[-3:]] if self.is_flushed else [])
        return result
