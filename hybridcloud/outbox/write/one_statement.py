"""Whether a change can write its messages in its own statement.

A save with its message is then one statement, and outside of a transaction its own transaction:
it takes as many round trips as a save without a message.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Field, Model
from django.db.models.signals import post_save, pre_save

from hybridcloud.outbox.declare.identifiers import is_integer, shard_field
from hybridcloud.outbox.write.after_commit import announce
from hybridcloud.outbox.write.context import buffer_of
from hybridcloud.outbox.write.messages import produce, uses_default
from hybridcloud.outbox.write.sink import Carrying, Sink, telling
from silos import SiloMode
from silos.guard import open_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.declare.scope import OutboxScope
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
        and is_integer(shard)
        and is_integer(concrete._meta.pk)
    )


def _scope_to_combine(
    instance: ProducingModel, save: Callable[..., None], connection: BaseDatabaseWrapper
) -> OutboxScope | None:
    """Return the message's scope if a save is only its row's own statement."""
    # A hook or receiver that runs with the save relies on a transaction, and its messages come
    # before the row's. A block that gathers messages writes them all at once, and another silo's
    # open transaction forbids a statement outside of one.
    model = type(instance)
    if (
        getattr(save, "__func__", None) is Model.save
        and _is_saved_by_django_alone(model)
        and (instance.pk is not None or not model._meta.pk.has_default())
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
    steps = ("save_base", "_do_insert", "_do_update")
    fields = model._meta.concrete_fields
    # A key's own hook may write rows as well, such as those of a sequence kept in a table.
    makes_key: Any = type(model._meta.pk).get_pk_value_on_save
    return (
        all(getattr(model, step) is getattr(Model, step) for step in steps)
        and uses_default(model, "_save_table")
        and issubclass(type(model._base_manager.all()), Carrying)
        and all(type(field).pre_save.__module__ == Field.__module__ for field in fields)
        and makes_key is Field.get_pk_value_on_save
    )


def save_combined(
    instance: ProducingModel, save: Callable[..., None], arguments: Any, *, using: str
) -> bool:
    """Save a row and its message in one statement; False if it cannot.

    Nothing was done then. ``save`` is the instance's next one by the order of bases.
    """
    model, connection = type(instance), connections[using]
    scope = _scope_to_combine(instance, save, connection)
    if scope is None:
        return False
    sink = Sink(model, scope, one_row=True, flush=None)
    try:
        with telling([instance], sink):
            save(*arguments[0], **arguments[1])
    finally:
        # Also after an error: outside of a transaction the row is committed by then. Not before:
        # a flush finds the instance whole.
        if sink.batch is not None:
            announce(connection, sink.batch)
    sink.close(changed=False)
    if sink.batch is None:
        # Nothing was written: a model may have no column but its key.
        produce(model, [instance], using=using)
    return True
