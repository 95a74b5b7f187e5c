"""Models whose changes write outbox messages: without them each save would have to remember to.

`ReplicatedCellModel` and `ReplicatedControlModel` are for models with handlers
of their own; the lower `CellOutboxProducingModel` and
`ControlOutboxProducingModel` for those that make their messages themselves.
Put the mixin first among the bases, so that its managers and methods win.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from django.db import models, router, transaction
from django.db.models.signals import class_prepared

from hybridcloud.outbox.declare.cell_mapping import names_of_row
from hybridcloud.outbox.store.tables import default_outbox
from hybridcloud.outbox.write.context import joined_context, outbox_context
from hybridcloud.outbox.write.messages import (
    cells_of_owner,
    default_hook,
    is_outermost,
    is_triggered,
    produce,
    triggered,
    uses_default,
    wake,
)
from hybridcloud.outbox.write.one_statement import save_combined, scope_to_combine
from hybridcloud.outbox.write.querysets import ProducingManager
from hybridcloud.outbox.write.registration import register, root_of
from silos import SiloMode
from silos.cells import all_cells

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hybridcloud.outbox.declare.category import CellMessage, ControlMessage, OutboxCategory
    from hybridcloud.outbox.declare.cell_mapping import TriggerCells
    from hybridcloud.outbox.store.tables import OutboxTable


class ProducingModel(models.Model):
    """What all producing models share; subclass one of the four public mixins instead.

    Attributes:
        default_flush: whether messages of the model are flushed after the
            commit; None: as the `outbox_context` says, else yes.
        replication_version: raise it to have the existing rows replicated again.
        outbox_type: a second outbox table for the model's messages; None: the first of the settings.
        shard_key: path to the shard identifier where it is not the scope's
            ``shard_key``, such as ``"auth_provider.organization_id"``.
        outbox_via: ``"trigger"`` has triggers write the messages, so that raw SQL cannot bypass them.
        trigger_payload: with triggers, the columns (``organization_id``) that make up the payload.
        trigger_cells: with triggers in control, which cells hear of a row: ``"all"`` or a `CellMapping`.
    """

    default_flush: ClassVar[bool | None] = None
    replication_version: ClassVar[int] = 1
    outbox_type: ClassVar[type[OutboxTable] | None] = None
    shard_key: ClassVar[str | None] = None
    category: ClassVar[OutboxCategory]
    silo_mode: ClassVar[SiloMode]
    is_replicated: ClassVar[bool] = False
    outbox_via: ClassVar[Literal["mixin", "trigger"]] = "mixin"
    trigger_payload: ClassVar[tuple[str, ...]] = ()
    trigger_cells: ClassVar[TriggerCells | None] = None

    objects: ClassVar[ProducingManager[Self]] = ProducingManager()
    # Unfiltered, whatever `objects` becomes: Django's cascades and related managers go through it.
    outbox_rows: ClassVar[ProducingManager[Self]] = ProducingManager()

    class Meta:
        abstract = True
        base_manager_name = "outbox_rows"

    @default_hook
    def payload_for_update(self) -> dict[str, Any] | None:
        """Return JSON for the handler: only what nobody can tell once the row is gone.

        Called inside the transaction of the change. The newest payload of an
        object is delivered, older ones may not be.
        """
        return None

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:
        """Return the messages about the row as it is now, or about its deletion, not saved yet."""
        raise NotImplementedError

    @classmethod
    def outbox_model(cls) -> type[OutboxTable]:
        """Return the outbox table of the model's messages."""
        if cls.outbox_type is not None:
            return cls.outbox_type
        return default_outbox(cls.silo_mode)

    @classmethod
    def has_default_messages(cls) -> bool:
        """Say whether the model's messages are made by the framework's own hooks."""
        return False

    @default_hook
    @contextmanager
    def prepare_outboxes(
        self,
        outbox_before_super: bool,  # noqa: FBT001 - the reference's signature
        flush: bool | None = None,  # noqa: FBT001
        *,
        using: str | None = None,
    ) -> Iterator[None]:
        """Write the messages about a change in one transaction with it.

        Args:
            outbox_before_super: write them before the block, else after it.
            flush: whether they are flushed after the commit; None: as ``default_flush`` says.
            using: the database; default the instance's.
        """
        using = using or router.db_for_write(type(self), instance=self)
        flush = self.default_flush if flush is None else flush
        if is_triggered(type(self)):
            with (
                transaction.atomic(using=using, savepoint=False),
                triggered(type(self), using, flush),
            ):
                yield
            return
        with outbox_context(transaction.atomic(using=using, savepoint=False), flush):
            if outbox_before_super:
                produce(type(self), [self], using=using, flush=flush)
            yield
            if not outbox_before_super:
                produce(type(self), [self], using=using, flush=flush)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row and write its messages, in one transaction."""
        update_fields = kwargs.get("update_fields")
        if update_fields is not None and not update_fields:
            # Django saves nothing then, so there is nothing to tell.
            super().save(*args, **kwargs)
            return
        if is_triggered(type(self)) and not args and is_outermost():
            # As nearly always; what goes before the save elsewhere has nothing to do.
            super().save(**kwargs)
            if self._state.db is not None:
                # Else another class's save() saved nothing.
                wake(type(self), self._state.db, flush=self.default_flush)
            return
        # Before Django 6 these may come by position: force_insert, force_update, using.
        using = args[2] if len(args) > 2 else kwargs.get("using")
        using = using or router.db_for_write(type(self), instance=self)
        if len(args) <= 2:
            kwargs["using"] = using
        if is_triggered(type(self)):
            # No transaction: the trigger is part of the statement.
            with triggered(type(self), using, None):
                super().save(*args, **kwargs)
            return
        save = partial(super().save, *args, **kwargs)
        scope = scope_to_combine(self, save.func, using=using)
        if scope is not None and save_combined(self, scope, save, using=using):
            return
        with self.prepare_outboxes(outbox_before_super=False, using=using):
            save()

    def delete(
        self,
        using: str | None = None,
        keep_parents: bool = False,  # noqa: FBT001, FBT002 - Django's
    ) -> tuple[int, dict[str, int]]:
        """Delete the row and write the messages about it and about what goes with it."""
        if self.pk is None:
            return super().delete(using, keep_parents)
        using = using or router.db_for_write(type(self), instance=self)
        if is_triggered(type(self)):
            with triggered(type(self), using, None):
                return super().delete(using, keep_parents)
        with joined_context(using, flush=self.default_flush):
            if keep_parents and type(self)._meta.concrete_model is not root_of(type(self)):
                # The root's row stays, so nothing tells of its deletion; but it has changed.
                produce(type(self), [self], using=using)
            return super().delete(using, keep_parents)

    def update(self, **fields: Any) -> int:
        """Set fields of the row, in the database and here, and write its messages.

        Only these fields are written, unlike in `save`, and those that Django
        sets at each save (``auto_now``).

        Returns:
            How many rows were changed: 0, if the row is gone.
        """
        for field in self._meta.concrete_fields:
            if getattr(field, "auto_now", False) and field.name not in fields:
                fields[field.name] = field.pre_save(self, add=False)
        using = router.db_for_write(type(self), instance=self)
        rows = type(self).outbox_rows.using(using).filter(pk=self.pk).update(**fields)
        computed = [name for name, value in fields.items() if hasattr(value, "resolve_expression")]
        for name, value in fields.items():
            if name not in computed:
                setattr(self, name, value)
        if computed and rows:
            self.refresh_from_db(using=using, fields=computed)
        return rows


class CellOutboxProducingModel(ProducingModel):
    """A model of cells that makes the message about a change itself; override `outbox_for_update`."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CELL
    outbox_type: ClassVar[type[CellMessage] | None] = None

    class Meta(ProducingModel.Meta):
        abstract = True

    def outbox_for_update(self, shard_identifier: int | None = None) -> CellMessage:
        """Make the message about the row as it is now, not saved yet.

        Called inside the transaction of the change: after a save, before a deletion.

        Args:
            shard_identifier: overrides what the row says.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no outbox_for_update(). Override it: return "
            f"Category.….as_cell_outbox(model=self, shard_identifier=shard_identifier)."
        )

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:  # noqa: ARG002
        """Return the message of `outbox_for_update`."""
        return [self.outbox_for_update()]


class ControlOutboxProducingModel(ProducingModel):
    """A model of control that makes the messages about a change itself; override `outboxes_for_update`."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CONTROL
    outbox_type: ClassVar[type[ControlMessage] | None] = None

    class Meta(ProducingModel.Meta):
        abstract = True

    def outboxes_for_update(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make the messages about the row as it is now, one for each cell, not saved yet.

        Called inside the transaction of the change, after it.

        Args:
            shard_identifier: overrides what the row says.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no outboxes_for_update(). Override it: return "
            f"Category.….as_control_outboxes(cell_names, model=self, …)."
        )

    def outboxes_for_deletion(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make the messages about the row's deletion, while it is still there.

        The same as for a change; override it where those who hold a copy may
        be more than those who hear of changes now.
        """
        return self.outboxes_for_update(shard_identifier)

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:
        """Return the messages of `outboxes_for_update`, or of `outboxes_for_deletion`."""
        return list(self.outboxes_for_deletion() if deleted else self.outboxes_for_update())


class ReplicatedCellModel(CellOutboxProducingModel):
    """A model of cells whose changes its own handlers take to control.

    Attributes:
        category: the category of its messages; one model has it.
    """

    is_replicated: ClassVar[bool] = True

    class Meta(CellOutboxProducingModel.Meta):
        abstract = True

    @default_hook
    def outbox_for_update(self, shard_identifier: int | None = None) -> CellMessage:
        """Make the message about the row as it is now, not saved yet."""
        return self.category.as_cell_outbox(
            model=self,
            payload=self.payload_for_update(),
            shard_identifier=shard_identifier,
            outbox=self.outbox_type,
        )

    @default_hook
    def handle_async_replication(self, shard_identifier: int) -> None:
        """Take the row as it is now to where it is copied; called one or more times for a change."""

    @classmethod
    @default_hook
    def handle_async_deletion(
        cls, identifier: int, shard_identifier: int, payload: Mapping[str, Any] | None
    ) -> None:
        """Remove copies of a row that is gone; called one or more times, with the newest payload."""

    @classmethod
    def has_default_messages(cls) -> bool:
        """Say whether `outbox_for_update` is the framework's own."""
        return uses_default(cls, "outbox_for_update")


class ReplicatedControlModel(ControlOutboxProducingModel):
    """A model of control whose changes its own handlers take to cells, once for each cell.

    Attributes:
        category: the category of its messages; one model has it.
    """

    is_replicated: ClassVar[bool] = True

    class Meta(ControlOutboxProducingModel.Meta):
        abstract = True

    @default_hook
    def outbox_cell_names(self) -> Collection[str]:
        """Return the cells that must hear of a change: those of the row's organization, else of its user.

        With ``trigger_cells``, those that the triggers find.

        Raises:
            IdentifierError: it has neither an ``organization_id`` nor a ``user_id``.
        """
        return cells_of_owner(self) if self.trigger_cells is None else names_of_row(self)

    @default_hook
    def outbox_cell_names_for_deletion(self) -> Collection[str]:
        """Return the cells that may hold a copy of a row that is going: all of them.

        What would name them, a mapping or a membership, is often gone by then.
        """
        return [cell.name for cell in all_cells()]

    @default_hook
    def outboxes_for_update(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make the messages about the row as it is now, one for each cell, not saved yet."""
        return self._outboxes(self.outbox_cell_names(), shard_identifier)

    @default_hook
    def outboxes_for_deletion(self, shard_identifier: int | None = None) -> list[ControlMessage]:
        """Make the messages about the row's deletion, one for each cell that may hold a copy."""
        return self._outboxes(self.outbox_cell_names_for_deletion(), shard_identifier)

    def _outboxes(
        self, cell_names: Collection[str], shard_identifier: int | None
    ) -> list[ControlMessage]:
        return self.category.as_control_outboxes(
            cell_names,
            model=self,
            payload=self.payload_for_update(),
            shard_identifier=shard_identifier,
            outbox=self.outbox_type,
        )

    @default_hook
    def handle_async_replication(self, cell_name: str, shard_identifier: int) -> None:
        """Take the row as it is now to a cell; called one or more times for a change and cell."""

    @classmethod
    @default_hook
    def handle_async_deletion(
        cls,
        identifier: int,
        cell_name: str,
        shard_identifier: int,
        payload: Mapping[str, Any] | None,
    ) -> None:
        """Remove the copy of a row that is gone from a cell; called one or more times for each cell."""

    @classmethod
    def has_default_messages(cls) -> bool:
        """Say whether both hooks that make messages are the framework's own."""
        return uses_default(cls, "outboxes_for_update") and uses_default(
            cls, "outboxes_for_deletion"
        )


def has_own_handlers(model: type[models.Model]) -> bool:
    """Say whether a replicated model overrides a handler; if not, its messages would be lost."""
    return not (
        uses_default(model, "handle_async_replication")
        and uses_default(model, "handle_async_deletion")
    )


def _prepared(*, sender: type[models.Model], **_: Any) -> None:
    if issubclass(sender, ProducingModel):
        register(sender)


class_prepared.connect(_prepared, dispatch_uid="hybridcloud.outbox.write.mixins")
