"""How a save, an update or a deletion of a model writes its messages.

`ProducingModel` is the base of the public mixins, which are in `replicated`.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from django.apps import apps
from django.db import models, router, transaction

from hybridcloud.causation import is_inside
from hybridcloud.conf import settings
from hybridcloud.outbox.write.bulk_update import update_instance
from hybridcloud.outbox.write.context import is_gathering, joined_context, outbox_context
from hybridcloud.outbox.write.messages import (
    default_hook,
    is_triggered,
    produce,
    triggered,
    uses_default,
    wake,
)
from hybridcloud.outbox.write.one_statement import save_combined
from hybridcloud.outbox.write.querysets import ProducingManager
from hybridcloud.outbox.write.registration import root_of
from hybridcloud.outbox.write.sink import is_told, telling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.declare.category import (
        OutboxCategory,
    )
    from hybridcloud.outbox.declare.cell_mapping import TriggerCells
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.after_commit import Flush
    from silos import SiloMode


class ProducingModel(models.Model):
    """What producing models share; subclass one of the public mixins.

    Attributes:
        default_flush: whether, or how (``"sync"``, ``"kick"``, ``"cron"``), messages are flushed after
            the commit; True: as the settings say; None: as the context says, else yes.
        replication_version: raise it to have the existing rows replicated again.
        outbox_type: a second outbox table for the messages; None: the first of the settings.
        shard_key: path to the shard identifier (``"provider.organization_id"``); None: the scope's.
        category: the category of a replicated model's messages; no other model may have it.
        outbox_via: ``"trigger"``: triggers write the messages, so raw SQL cannot bypass them.
        trigger_payload: with triggers, the columns (``organization_id``) of the payload.
        trigger_cells: with triggers in control, the cells to tell: ``"all"`` or a `CellMapping`.
    """

    default_flush: ClassVar[Flush] = None
    replication_version: ClassVar[int] = 1
    outbox_type: ClassVar[type[OutboxTable] | None] = None
    shard_key: ClassVar[str | None] = None
    category: ClassVar[OutboxCategory]
    silo_mode: ClassVar[SiloMode]
    is_replicated: ClassVar[bool] = False
    outbox_via: ClassVar[Literal["mixin", "trigger"]] = "mixin"
    trigger_payload: ClassVar[tuple[str, ...]] = ()
    trigger_cells: ClassVar[TriggerCells | None] = None
    _message_hooks: ClassVar[tuple[str, ...]] = ()

    objects: ClassVar[ProducingManager[Self]] = ProducingManager()
    # Unfiltered, even where a model replaces `objects`: Django's cascades and related managers
    # use it, and a row hidden from them would not be told about.
    outbox_rows: ClassVar[ProducingManager[Self]] = ProducingManager()

    class Meta:
        abstract = True
        base_manager_name = "outbox_rows"

    @default_hook
    def payload_for_update(self) -> dict[str, Any] | None:
        """Return JSON for the handler: only what a deleted row cannot tell.

        Called inside the change's transaction. Older payloads of an object may not be delivered.
        """
        return None

    def messages(self, *, deleted: bool = False) -> list[OutboxTable]:
        """Return unsaved messages about the row as it is, or its deletion."""
        raise NotImplementedError

    @classmethod
    def outbox_model(cls) -> type[OutboxTable]:
        """Return the outbox table of the model's messages."""
        if cls.outbox_type is not None:
            return cls.outbox_type
        outbox: type[OutboxTable] = apps.get_model(settings().outbox_models[cls.silo_mode.name][0])
        return outbox

    @classmethod
    def has_default_messages(cls) -> bool:
        """Say whether the framework's own hooks make the model's messages."""
        return bool(cls._message_hooks) and uses_default(cls, *cls._message_hooks)

    @default_hook
    @contextmanager
    def prepare_outboxes(
        self,
        outbox_before_super: bool,  # noqa: FBT001 - the reference's signature
        flush: Flush = None,
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
        # No savepoint, which would cost two statements: an error then dooms the outer transaction,
        # so the change and its message cannot be separated.
        atomic = transaction.atomic(using=using, savepoint=False)
        if is_triggered(type(self)):
            with atomic, triggered(type(self), using, flush):
                yield
            return
        with outbox_context(atomic, flush):
            if outbox_before_super:
                produce(type(self), [self], using=using, flush=flush)
            yield
            if not outbox_before_super:
                produce(type(self), [self], using=using, flush=flush)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row and write its messages, in one transaction."""
        update_fields = kwargs.get("update_fields")
        if update_fields is not None and not update_fields:
            # Django then saves nothing, so there is nothing to write about.
            super().save(*args, **kwargs)
            return
        if is_triggered(type(self)) and not (args or is_gathering() or is_inside()):
            # The usual case: nothing is buffered and no causation is lent, so skip `triggered`.
            super().save(**kwargs)
            # None where the save() of another base saved nothing.
            if self._state.db is not None:
                wake(type(self), self._state.db, flush=self.default_flush)
            return
        # Before Django 6 these may be positional: force_insert, force_update, using.
        using = args[2] if len(args) > 2 else kwargs.get("using")
        using = using or router.db_for_write(type(self), instance=self)
        if len(args) <= 2:
            kwargs["using"] = using
        if is_triggered(type(self)):
            # No transaction is opened: the trigger is part of the row's own statement.
            with triggered(type(self), using, None):
                super().save(*args, **kwargs)
            return
        save = super().save
        if not save_combined(self, save, (args, kwargs), using=using):
            with (
                self.prepare_outboxes(outbox_before_super=False, using=using),
                telling([self]),
            ):
                save(*args, **kwargs)

    @default_hook
    def _save_table(
        self,
        raw: bool = False,  # noqa: FBT001, FBT002
        cls: Any = None,
        force_insert: bool = False,  # noqa: FBT001, FBT002
        force_update: bool = False,  # noqa: FBT001, FBT002
        using: str | None = None,
        update_fields: Any = None,
    ) -> bool:
        """Save the row; tell of it where Django went past `save()`.

        As `loaddata`, deserialized objects and `save_base()` do.
        """
        save = partial(
            super()._save_table,  # type: ignore[misc]
            raw,
            cls,
            force_insert,
            force_update,
            using,
            update_fields,
        )
        if is_told(self) or (is_triggered(type(self)) and not raw):
            return bool(save())
        alias = using or router.db_for_write(type(self), instance=self)
        if is_triggered(type(self)):
            with triggered(type(self), alias, None):
                return bool(save())
        with joined_context(alias, flush=self.default_flush), telling([self]):
            updated = bool(save())
            produce(type(self), [self], using=alias)
        return updated

    def delete(
        self,
        using: str | None = None,
        keep_parents: bool = False,  # noqa: FBT001, FBT002 - Django's
    ) -> tuple[int, dict[str, int]]:
        """Delete the row and what cascades, and write the messages about it."""
        if self.pk is None:
            # Django raises.
            return super().delete(using, keep_parents)
        using = using or router.db_for_write(type(self), instance=self)
        if is_triggered(type(self)):
            with triggered(type(self), using, None):
                return super().delete(using, keep_parents)
        with joined_context(using, flush=self.default_flush):
            if keep_parents and type(self)._meta.concrete_model is not root_of(type(self)):
                # The root's row stays, and only its own deletion would write a message.
                produce(type(self), [self], using=using)
            return super().delete(using, keep_parents)

    def update(self, **fields: Any) -> int:
        """Set fields of row and instance, write the messages, count the rows.

        Only these and ``auto_now`` fields are written. The count is 0 if the row is gone.
        """
        return update_instance(self, fields, using=router.db_for_write(type(self), instance=self))
