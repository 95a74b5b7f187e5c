"""Turns changed instances into outbox rows."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from django.db import connections, transaction

from hybridcloud.causation import current_headers
from hybridcloud.errors import IdentifierError, OutboxError
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.declare.identifiers import identifiers_of
from hybridcloud.outbox.write.after_commit import Batch, announce
from hybridcloud.outbox.write.context import flush_choice, write_messages, write_rows
from hybridcloud.outbox.write.insert import Row, as_json
from hybridcloud.registry import Slot
from silos import SiloMode, find_cells_for_orgs, find_cells_for_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractContextManager

    from django.db.models import Model

    from hybridcloud.outbox.declare.category import ControlMessage
    from hybridcloud.outbox.write.after_commit import Flush, FlushChoice
    from hybridcloud.outbox.write.mixins import ProducingModel
    from hybridcloud.outbox.write.replicated import ReplicatedControlModel

_DEFAULT = "_outbox_default"


def default_hook[F: Callable[..., Any]](hook: F) -> F:
    """Mark a hook as the framework's own, to tell an override from it."""
    # An override is another function, so it does not have the mark.
    setattr(hook, _DEFAULT, True)
    return hook


def uses_default(model: type[Model], *hooks: str) -> bool:
    """Say whether a model overrides none of these hooks of the framework."""
    return all(getattr(getattr(model, hook, None), _DEFAULT, False) for hook in hooks)


def is_triggered(model: type[Model]) -> bool:
    """Say whether triggers write the messages of a model's rows."""
    return getattr(model, "outbox_via", None) == "trigger"


def columns_payload(instance: ProducingModel) -> dict[str, Any]:
    """Return what triggers make of ``trigger_payload``; for backfills."""
    return {name: getattr(instance, name) for name in instance.trigger_payload}


def wake(model: type[ProducingModel], using: str, *, flush: Flush) -> None:
    """Have a drainer woken after a commit whose messages triggers wrote."""
    if flush_choice(flush):
        announce(connections[using], Batch(model.outbox_model(), Counter(), (), unseen=True))


def _not_ready(model: type[ProducingModel], using: str, flush: Flush) -> NoReturn:
    del using, flush
    raise OutboxError(
        f"Apps not ready: a row of {model._meta.label} was changed, whose messages triggers write. "
        f"Change it after django.setup()."
    )


triggered: Slot[[type[ProducingModel], str, Flush], AbstractContextManager[None]] = Slot(
    "what goes around a change whose messages triggers write", _not_ready
)
"""Called with the model, the database and whether to flush; ``triggers`` fills it."""


def produce(
    model: type[ProducingModel],
    instances: Iterable[ProducingModel],
    *,
    using: str,
    deleted: bool = False,
    flush: Flush = None,
) -> int:
    """Write the messages about instances, in their order; return how many.

    ``deleted`` says that they are about to be deleted, ``flush`` whether the messages are flushed
    after the commit; None: as the model, else the context, says.
    """
    choice = flush_choice(model.default_flush if flush is None else flush)
    # A change whose message cannot be made must not commit.
    with transaction.mark_for_rollback_on_error(using=using):
        if model.has_default_messages():
            rows = _default_rows(model, instances, flush=choice, deleted=deleted)
            write_rows(rows, using=using)
            return len(rows)
        messages = [each for instance in instances for each in instance.messages(deleted=deleted)]
        write_messages(messages, using=using, flush=choice)
        return len(messages)


def _default_rows(
    model: type[ProducingModel],
    instances: Iterable[ProducingModel],
    *,
    flush: FlushChoice,
    deleted: bool,
) -> list[Row]:
    """Do what the default hooks do, with no instance for each message."""
    category, scope = model.category.value, model.category.get_scope()
    # A retired category is refused.
    validated_scope(scope.value, category)
    number, coalesces, outbox = scope.value, scope.policy.coalesce, model.outbox_model()
    headers = as_json(outbox, "headers", current_headers(), of="the headers")
    has_payload = not uses_default(model, "payload_for_update")
    targets = _targets(model, deleted=deleted) if outbox.silo_mode is SiloMode.CONTROL else None
    identify = identifiers_of(scope, model)
    rows: list[Row] = []
    for instance in instances:
        shard, about = identify(instance)
        payload = None
        if has_payload:
            of = f"the payload of {model._meta.label} {instance.pk}, {model.category.name}"
            payload = as_json(outbox, "payload", instance.payload_for_update(), of=of)
        own = (number, shard)
        rows += [
            Row(
                outbox=outbox,
                shard=key,
                category=category,
                object_identifier=about,
                payload=payload,
                headers=headers,
                coalesces=coalesces,
                flush=flush,
            )
            for key in ([own] if targets is None else [(cell, *own) for cell in targets(instance)])
        ]
    return rows


def default_control_messages(
    instance: ReplicatedControlModel, cell_names: Collection[str], shard_identifier: int | None
) -> list[ControlMessage]:
    """Make the messages of the default `outboxes_for_update`."""
    return instance.category.as_control_outboxes(
        cell_names,
        instance,
        payload=instance.payload_for_update(),
        shard_identifier=shard_identifier,
        outbox=instance.outbox_type,
    )


def _targets(model: type[ProducingModel], *, deleted: bool) -> Callable[[Any], list[str]]:
    """Return a function from an instance to the cells to tell."""
    hook = "outbox_cell_names_for_deletion" if deleted else "outbox_cell_names"
    # Only cells that follow from the owner alone are the same for all of its rows.
    if deleted or model.trigger_cells is not None or not uses_default(model, hook):
        return lambda instance: sorted(set(getattr(instance, hook)()))
    # The resolver is asked once for each organization or user.
    cells = cache(_cells_of)
    return lambda instance: sorted(cells(*_owner_of(instance)))


def cells_of_owner(instance: Model) -> Collection[str]:
    """Return the cells of an instance's organization, else of its user."""
    return _cells_of(*_owner_of(instance))


def _cells_of(attribute: str, identifier: int) -> Collection[str]:
    if attribute == "organization_id":
        return find_cells_for_orgs([identifier])
    return find_cells_for_user(identifier)


def _owner_of(instance: Model) -> tuple[str, int]:
    for attribute in ("organization_id", "user_id"):
        identifier = getattr(instance, attribute, None)
        if identifier is not None:
            return attribute, int(identifier)
    raise IdentifierError(
        f"No target cells for {instance._meta.label} {instance.pk}: it has neither an "
        f"organization_id nor a user_id. Override outbox_cell_names() on the model."
    )
