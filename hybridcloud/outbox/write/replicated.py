"""The public mixins of models whose changes write outbox messages.

`ReplicatedCellModel` and `ReplicatedControlModel` are for models with handlers of their own;
`CellOutboxProducingModel` and `ControlOutboxProducingModel` for models that make their
messages themselves. Put the mixin first among the bases, so that its managers and methods win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hybridcloud.outbox.declare.cell_mapping import names_of_row
from hybridcloud.outbox.write.messages import (
    cells_of_owner,
    default_control_messages,
    default_hook,
    uses_default,
)
from hybridcloud.outbox.write.mixins import ProducingModel
from silos import SiloMode
from silos.cells import all_cells

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.db import models

    from hybridcloud.outbox.declare.category import CellMessage, ControlMessage, Payload
    from hybridcloud.outbox.store.tables import OutboxTable


class CellOutboxProducingModel(ProducingModel):
    """A model of cells with its own messages; override `outbox_for_update`."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CELL
    outbox_type: ClassVar[type[CellMessage] | None] = None

    class Meta(ProducingModel.Meta):
        abstract = True

    def outbox_for_update(self, shard_identifier: int | None = None) -> CellMessage:
        """Make an unsaved message about the row as it is now.

        Called inside the change's transaction: after a save, before a deletion.
        ``shard_identifier`` overrides the row's own.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no outbox_for_update(). Override it: return "
            f"Category.….as_cell_outbox(model=self, shard_identifier=shard_identifier)."
        )

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:  # noqa: ARG002
        """Return the message of `outbox_for_update`."""
        return [self.outbox_for_update()]


class ControlOutboxProducingModel(ProducingModel):
    """A model of control with its own messages: `outboxes_for_update`."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CONTROL
    outbox_type: ClassVar[type[ControlMessage] | None] = None

    class Meta(ProducingModel.Meta):
        abstract = True

    def outboxes_for_update(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make unsaved messages about the row as it is now, one for each cell.

        Called in the change's transaction, after it. ``shard_identifier`` overrides the row's own.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no outboxes_for_update(). Override it: return "
            f"Category.….as_control_outboxes(cell_names, model=self, …)."
        )

    def outboxes_for_deletion(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make unsaved messages about the row's deletion, while it is still there.

        The same as for a change; override it where more cells may hold a copy than are told now.
        """
        return self.outboxes_for_update(shard_identifier)

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:
        """Return the messages of `outboxes_for_update` or `…_for_deletion`."""
        return list(self.outboxes_for_deletion() if deleted else self.outboxes_for_update())


class ReplicatedCellModel(CellOutboxProducingModel):
    """A model of cells whose own handlers replicate it; set ``category``."""

    is_replicated: ClassVar[bool] = True
    _message_hooks: ClassVar[tuple[str, ...]] = ("outbox_for_update",)

    class Meta(CellOutboxProducingModel.Meta):
        abstract = True

    @default_hook
    def outbox_for_update(self, shard_identifier: int | None = None) -> CellMessage:
        """Make an unsaved message about the row as it is now."""
        return self.category.as_cell_outbox(
            self,
            payload=self.payload_for_update(),
            shard_identifier=shard_identifier,
            outbox=self.outbox_type,
        )

    @default_hook
    def handle_async_replication(self, shard_identifier: int) -> None:
        """Copy the row as it is now; called one or more times for a change."""

    @classmethod
    @default_hook
    def handle_async_deletion(
        cls, identifier: int, shard_identifier: int, payload: Payload
    ) -> None:
        """Remove the copies; called one or more times, with the newest payload."""


class ReplicatedControlModel(ControlOutboxProducingModel):
    """A model of control whose own handlers replicate it; set ``category``."""

    is_replicated: ClassVar[bool] = True
    _message_hooks: ClassVar[tuple[str, ...]] = ("outboxes_for_update", "outboxes_for_deletion")

    class Meta(ControlOutboxProducingModel.Meta):
        abstract = True

    @default_hook
    def outbox_cell_names(self) -> Collection[str]:
        """Return the cells to tell: the organization's, else the user's.

        With ``trigger_cells``, those that the triggers find.

        Raises:
            IdentifierError: the row has neither an ``organization_id`` nor a ``user_id``.
        """
        return cells_of_owner(self) if self.trigger_cells is None else names_of_row(self)

    @default_hook
    def outbox_cell_names_for_deletion(self) -> Collection[str]:
        """Return the cells that may hold a copy of a deleted row: all.

        The mapping or membership that names fewer is often deleted before the row.
        """
        return [cell.name for cell in all_cells()]

    @default_hook
    def outboxes_for_update(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make unsaved messages about the row as it is now, one for each cell."""
        return default_control_messages(self, self.outbox_cell_names(), shard_identifier)

    @default_hook
    def outboxes_for_deletion(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make unsaved messages about the row's deletion, one for each cell."""
        names = self.outbox_cell_names_for_deletion()
        return default_control_messages(self, names, shard_identifier)

    @default_hook
    def handle_async_replication(self, cell_name: str, shard_identifier: int) -> None:
        """Copy the row as it is now; called one or more times for a cell."""

    @classmethod
    @default_hook
    def handle_async_deletion(
        cls, identifier: int, cell_name: str, shard_identifier: int, payload: Payload
    ) -> None:
        """Remove the copy; called one or more times for a cell, newest payload."""


def has_own_handlers(model: type[models.Model]) -> bool:
    """Say whether a replicated model overrides at least one handler."""
    return not uses_default(model, "handle_async_replication", "handle_async_deletion")
