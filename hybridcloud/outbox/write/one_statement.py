"""Saves a row and its message in one statement: without it a lone save would take two, and a transaction around them.

Outside of a transaction the statement is its own, so a save with its message
takes as many round trips as one without.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Field, Model
from django.db.models.signals import post_save, pre_save

from hybridcloud.outbox.write.after_commit import Batch, announce, register
from hybridcloud.outbox.write.context import buffer_of, is_flushing
from hybridcloud.outbox.write.messages import produce, uses_default
from hybridcloud.outbox.write.rewriting import Rewriter, scope_for_sql
from silos.guard import open_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.write.mixins import ProducingModel


class _NotCombinable(Exception):  # noqa: N818 - no error: the long way is gone instead
    """A lone save writes more than its row. That was not done."""


def scope_to_combine(
    instance: ProducingModel, save: Callable[..., None], *, using: str
) -> OutboxScope | None:
    """Return the message's scope, if nothing but the row's own statement belongs to a save, which is ``save``.

    A hook or a receiver of Django's signals that runs with the save is to find
    a transaction there, and its messages before the row's; a block that
    gathers messages writes them all at once.
    """
    model = type(instance)
    connection = connections[using]
    if (
        getattr(save, "__func__", None) is Model.save
        and _is_saved_by_django_alone(model)
        and uses_default(model, "prepare_outboxes")
        and not pre_save.has_listeners(model)
        and not post_save.has_listeners(model)
        and (connection.in_atomic_block or not _is_inside_another())
        and buffer_of(connection) is None
    ):
        return scope_for_sql(model)
    return None


def _is_inside_another() -> bool:
    """Say whether another silo's transaction is open, in which a statement may not stand alone."""
    return any(map(open_blocks, connections.all(initialized_only=True)))


@cache
def _is_saved_by_django_alone(model: type[ProducingModel]) -> bool:
    """Say whether a save is one INSERT or UPDATE, and no other code runs that might make one."""
    steps = ("save_base", "_save_table", "_do_insert", "_do_update")
    return all(getattr(model, step) is getattr(Model, step) for step in steps) and all(
        type(field).pre_save.__module__ == Field.__module__ for field in model._meta.concrete_fields
    )


def save_combined(
    instance: ProducingModel, scope: OutboxScope, save: Callable[[], None], *, using: str
) -> bool:
    """Save a row and write its message.

    Args:
        instance: what is saved.
        scope: what `scope_to_combine` found.
        save: Django's save of it.
        using: the database.

    Returns:
        False, if nothing was done because the save writes more than its row.

    Raises:
        InvalidOutboxError: the model's category is retired.
    """
    row = _Row(instance, scope, connections[using])
    try:
        with row:
            save()
    except _NotCombinable:
        return False
    finally:
        row.announce()
    if row.batch is None:
        # Nothing was written, as where a model has no column but its key.
        produce(type(instance), [instance], using=using)
    return True


class _Row(Rewriter):
    """The row of a save.

    Attributes:
        batch: its message, once both are written.
    """

    def __init__(
        self, instance: ProducingModel, scope: OutboxScope, connection: BaseDatabaseWrapper
    ) -> None:
        model = type(instance)
        super().__init__(model, scope, connection)
        self.batch: Batch | None = None
        self._is_running = False
        self._is_lone = not connection.in_atomic_block
        self._is_flushed = is_flushing(model.default_flush)
        self._verbs = (f"INSERT INTO {self.table} ", f"UPDATE {self.table} ")

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: dict[str, Any]
    ) -> Any:
        if self._is_running or not isinstance(sql, str) or sql.startswith("SELECT"):
            return execute(sql, params, many, context)
        if sql.startswith(self._verbs):
            return self._execute(execute, sql, params, many, context)
        if self._is_lone:
            raise _NotCombinable
        return execute(sql, params, many, context)

    def _execute(
        self, execute: Callable[..., Any], sql: str, params: Any, many: Any, context: dict[str, Any]
    ) -> Any:
        row, message = self.parts(sql)
        text = f"{row}, hc_message AS ({message}) SELECT hc_row.*, hc_message.* FROM hc_row, hc_message"  # noqa: S608
        # From here on the row may be committed: what others do around the statement is theirs.
        self._is_running = True
        result = execute(text, (*params, *self.values()), many, context)
        cursor = context["cursor"].cursor
        told = cursor.fetchone()
        if told is None:
            # An UPDATE that found no row; an INSERT will come.
            self._is_running = False
            return result
        # Django reads it again, and does not mind more columns than it asked for.
        cursor.scroll(-1)
        written = [self.written(told[-3:])] if self._is_flushed else []
        self.batch = Batch(self.outbox, Counter({self.model.category.value: 1}), written)
        if not self._is_lone:
            register(self.connection, self.batch)
        return result

    def announce(self) -> None:
        """Tell of the message, if its statement was a transaction of its own."""
        if self._is_lone and self.batch is not None:
            announce(self.connection, self.batch)
