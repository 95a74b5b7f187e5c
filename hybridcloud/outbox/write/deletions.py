"""Writes the messages about deleted rows.

Cascades do not call delete(), but Django sends ``pre_delete`` for each row that a cascade, an
instance or a queryset deletes, while the row still exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import CASCADE, DO_NOTHING, PROTECT, RESTRICT, SET, SET_DEFAULT, SET_NULL
from django.db.models.signals import pre_delete

from hybridcloud.outbox.write.messages import is_triggered, produce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.write.mixins import ProducingModel

_COVERED: Final = (CASCADE, PROTECT, RESTRICT, SET_NULL, SET_DEFAULT, DO_NOTHING)


def update_through_managers(model: type[ProducingModel]) -> None:
    """Have ``SET_DEFAULT`` and ``SET()`` use the model's producing update.

    ``SET_NULL`` does so already. For the other two Django fetches the rows and
    changes them past every manager, unless the function is marked lazy.
    """
    for field in _relations(model):
        on_delete: Any = field.remote_field.on_delete
        if on_delete is SET_DEFAULT or _is_set(on_delete):
            # SET_DEFAULT is marked for every model; others then update by a query as well.
            on_delete.lazy_sub_objs = True


def listen_to_deletions(model: type[ProducingModel]) -> None:
    """Write messages whenever rows of a model are deleted."""
    # For this sender only: a listener to all would disable Django's fast deletes everywhere.
    pre_delete.connect(
        _produce, sender=model, weak=False, dispatch_uid=("hybridcloud.outbox", model)
    )


def uncovered_relations(
    model: type[models.Model],
) -> Iterator[tuple[models.ForeignKey[Any, Any], str]]:
    """Yield the foreign keys whose ``on_delete`` misses messages, and why."""
    if is_triggered(model):
        return
    for field in _relations(model):
        on_delete: Any = field.remote_field.on_delete
        if on_delete in _COVERED or _is_set(on_delete):
            continue
        name = getattr(on_delete, "__name__", repr(on_delete))
        if name.startswith("DB_"):
            yield field, f"{name} changes rows inside the database, which Django does not see"
        else:
            yield field, f"{name} is none of Django's, and may change rows past the managers"


def _relations(model: type[models.Model]) -> Iterator[models.ForeignKey[Any, Any]]:
    for field in model._meta.concrete_fields:
        if isinstance(field, models.ForeignKey):
            yield field


def _is_set(on_delete: Any) -> bool:
    # The name of the function that SET() makes, with a value or a callable.
    name = getattr(on_delete, "__name__", "")
    return name == "set_on_delete" and on_delete.__module__ == SET.__module__


def _produce(
    *, sender: type[ProducingModel], instance: ProducingModel, using: str, **_: Any
) -> None:
    # Before the deletion: shard and target cells are read from the row and its relations.
    produce(sender, [instance], using=using, deleted=True)
