"""The receiver that passes a message to its model's own handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridcloud.outbox.declare.category import connected_mode, connected_models
from receivers.outbox.tombstone import maybe_process_tombstone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import Model
    from django.dispatch import Signal

    from silos import SiloMode


class ModelReceiver:
    """Receives one category's messages and calls its model's handlers.

    Args:
        model: a class with ``handle_async_replication`` and ``handle_async_deletion``.
    """

    def __init__(self, model: type[Model]) -> None:
        self.model: Any = model

    def __call__(
        self,
        *,
        object_identifier: int,
        shard_identifier: int,
        payload: Mapping[str, Any] | None,
        **more: Any,
    ) -> None:
        """Replicate the current row, or its deletion if it no longer exists."""
        # Only control's messages have a target cell, and only handlers of its models take one.
        target = {"cell_name": more["cell_name"]} if "cell_name" in more else {}
        instance = maybe_process_tombstone(self.model, object_identifier, **target)
        if instance is not None:
            instance.handle_async_replication(shard_identifier=shard_identifier, **target)
            return
        self.model.handle_async_deletion(
            identifier=object_identifier,
            shard_identifier=shard_identifier,
            payload=payload,
            **target,
        )

    def __repr__(self) -> str:
        return f"the handlers of {self.model._meta.label}"


def connect_models(signal: Signal, mode: SiloMode) -> None:
    """Connect the handlers of a silo's replicated models; safe to call twice.

    Args:
        signal: the signal that the silo's outbox is drained into.
        mode: `SiloMode.CELL` or `SiloMode.CONTROL`.
    """
    for category, model in connected_models.items():
        if connected_mode(category) is mode:
            signal.connect(
                ModelReceiver(model),
                sender=category,
                weak=False,
                dispatch_uid=f"receivers.outbox:{model._meta.label}",
            )
