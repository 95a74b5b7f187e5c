"""The outbox tables: without them no change could commit together with the message about it.

Fields, keys and indexes only. Writers INSERT and the engine DELETEs; no
message row is ever updated.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from django.apps import apps
from django.db import models
from django.db.models.functions import Now

from hybridcloud.conf import settings
from hybridcloud.outbox import schedule
from hybridcloud.outbox.category import category_choices, category_name, scope_choices, scope_name
from hybridcloud.outbox.context import save_message, write_messages
from hybridcloud.outbox.direct import drain_shard
from silos import SiloMode, cell_silo_model, control_silo_model
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from hybridcloud.outbox.claim import Leases


class Tables(NamedTuple):
    """The quoted names of an outbox table and of those that go with it."""

    label: str
    outbox: str
    parked: str
    lease: str
    failure: str
    sharding_columns: tuple[str, ...]


class MessageColumns(models.Model):
    """What a message consists of, in the outbox and in the parked table alike."""

    shard_scope = models.IntegerField(choices=scope_choices)
    shard_identifier = models.BigIntegerField()
    category = models.IntegerField(choices=category_choices)
    object_identifier = models.BigIntegerField()
    payload = models.JSONField(null=True, default=None)
    scheduled_from = models.DateTimeField(db_default=Now(), editable=False)
    scheduled_for = models.DateTimeField(db_default=Now(), editable=False)
    date_added = models.DateTimeField(db_default=Now(), editable=False)
    headers = models.JSONField(null=True, default=None, editable=False)

    sharding_columns: ClassVar[tuple[str, ...]] = ("shard_scope", "shard_identifier")
    coalesced_columns: ClassVar[tuple[str, ...]] = (
        "shard_scope",
        "shard_identifier",
        "category",
        "object_identifier",
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        shard = ":".join(str(value) for value in self.shard_key()[1:])
        return (
            f"message {self.pk} of {category_name(self.category)}"
            f" object {self.object_identifier} in {scope_name(self.shard_scope)}:{shard}"
        )

    def shard_key(self) -> tuple[Any, ...]:
        """Return the scope, the shard identifier and, for control messages, the cell."""
        return (self.shard_scope, self.shard_identifier)


class OutboxManager[M: "OutboxBase"](models.Manager[M]):
    """Writes messages the way `outbox_context` wants; there is no other way in."""

    def bulk_create(self, objs: Iterable[M], *_: Any, **__: Any) -> list[M]:
        """Write all messages in one INSERT per table, validated like `OutboxBase.save`."""
        messages = list(objs)
        write_messages(messages, using=self._db or alias_for_model(self.model))
        return messages


class OutboxBase(MessageColumns):
    """An outbox table: subclass `CellOutboxBase` or `ControlOutboxBase` to keep a second one.

    A second table brings its own parked, lease and failure models, named in
    ``parked_model``, ``lease_model`` and ``failure_model``.
    """

    parked_model: ClassVar[str]
    lease_model: ClassVar[str]
    failure_model: ClassVar[str]
    silo_mode: ClassVar[SiloMode]

    delay: timedelta | None = None
    """Set before saving to hold the message back so long; it is parked meanwhile."""

    claimed: Leases | None = None
    """The lease of `prepare_next_from_shard`, with which `drain_shard` goes on."""

    objects: ClassVar[OutboxManager[Self]] = OutboxManager()

    class Meta:
        abstract = True

    @classmethod
    def tables(cls) -> Tables:
        """Return the table names that the engine's statements are made of."""
        return _tables(cls)

    def save(self, *, using: str | None = None, **_: Any) -> None:
        """Write the message in the caller's transaction, or buffer it in the `outbox_context`.

        Raises:
            InvalidOutboxError: the category does not belong to the scope, or either is unknown.
        """
        save_message(self, using=using or alias_for_model(type(self)))

    def drain_shard(self, *, flush_all: bool = False) -> None:
        """Handle the messages of this message's shard, now and here.

        Args:
            flush_all: go on until the shard is empty, within a time budget;
                else stop at the newest message there is when it begins.

        Raises:
            OutboxFlushError: a handler failed; the failure was recorded first.
            OutboxDatabaseError: the engine's own SQL failed.
            OutboxTransactionError: a transaction is open.
        """
        drain_shard(self, flush_all=flush_all)

    def should_skip_shard(self) -> bool:
        """Say whether a kill switch stops this message's whole shard."""
        return schedule.is_switched_off(type(self), self.shard_key())

    @classmethod
    def find_scheduled_shards(cls, limit: int = 1000) -> list[tuple[Any, ...]]:
        """Return shards that are due: with messages, not in backoff, not leased, not switched off."""
        return schedule.find_due_shards(cls, alias=alias_for_model(cls), limit=limit)

    @classmethod
    def prepare_next_from_shard(cls, shard: Sequence[Any]) -> Self | None:
        """Claim the shard's lease and return its first message; None if it isn't due or is taken."""
        return schedule.prepare_next_from_shard(cls, tuple(shard), alias=alias_for_model(cls))

    @classmethod
    def get_shard_depths_descending(cls, limit: int | None = 10) -> list[dict[str, Any]]:
        """Return the deepest shards: their sharding columns and ``depth``, parked messages included.

        Raises:
            ValueError: the limit is not positive.
        """
        return schedule.shard_depths(cls, alias=alias_for_model(cls), limit=limit)

    @classmethod
    def get_total_outbox_count(cls) -> int:
        """Return how many messages wait in the outbox, exactly; parked ones aside."""
        return cls.objects.count()


class CellOutboxBase(OutboxBase):
    """A table of messages that are written and handled in a cell."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CELL

    class Meta:
        abstract = True
        indexes: ClassVar = [
            models.Index(fields=["shard_scope", "shard_identifier", "id"], name="%(class)s_shard")
        ]


class TargetCell(models.Model):
    """The column by which control messages differ: the cell that a message is for."""

    cell_name = models.CharField(max_length=48)

    sharding_columns: ClassVar[tuple[str, ...]] = ("cell_name", "shard_scope", "shard_identifier")
    coalesced_columns: ClassVar[tuple[str, ...]] = (
        "cell_name",
        "shard_scope",
        "shard_identifier",
        "category",
        "object_identifier",
    )

    class Meta:
        abstract = True

    shard_scope: Any
    shard_identifier: Any

    def shard_key(self) -> tuple[Any, ...]:
        """Return the cell, the scope and the shard identifier."""
        return (self.cell_name, self.shard_scope, self.shard_identifier)


class ControlOutboxBase(TargetCell, OutboxBase):
    """A table of messages that are written and handled in control, each for one cell."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CONTROL

    class Meta:
        abstract = True
        indexes: ClassVar = [
            models.Index(
                fields=["cell_name", "shard_scope", "shard_identifier", "id"],
                name="%(class)s_shard",
            )
        ]


@cell_silo_model
class CellOutbox(CellOutboxBase):
    """The messages of a cell, for control or for the cell itself."""

    parked_model: ClassVar[str] = "hybridcloud.CellParked"
    lease_model: ClassVar[str] = "hybridcloud.CellLease"
    failure_model: ClassVar[str] = "hybridcloud.CellFailure"

    class Meta(CellOutboxBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_celloutbox"


@control_silo_model
class ControlOutbox(ControlOutboxBase):
    """The messages of control, each for one cell."""

    parked_model: ClassVar[str] = "hybridcloud.ControlParked"
    lease_model: ClassVar[str] = "hybridcloud.ControlLease"
    failure_model: ClassVar[str] = "hybridcloud.ControlFailure"

    class Meta(ControlOutboxBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_controloutbox"


@cache
def _tables(outbox: type[OutboxBase]) -> Tables:
    def table(label: str) -> str:
        return f'"{apps.get_model(label)._meta.db_table}"'

    return Tables(
        label=outbox._meta.label,
        outbox=f'"{outbox._meta.db_table}"',
        parked=table(outbox.parked_model),
        lease=table(outbox.lease_model),
        failure=table(outbox.failure_model),
        sharding_columns=outbox.sharding_columns,
    )


def outbox_models(mode: SiloMode) -> tuple[type[OutboxBase], ...]:
    """Return the outbox tables of the control silo or of cells, as the settings name them."""
    labels = settings().outbox_models.get(mode.name, ())
    return tuple(apps.get_model(label) for label in labels)


def default_outbox(mode: SiloMode) -> type[OutboxBase]:
    """Return the first outbox table of the control silo or of cells."""
    return outbox_models(mode)[0]
