"""The outbox models, and the methods of a message.

Each method is one line into the layers below; the columns are in `store.tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.db import models

from hybridcloud.outbox.deliver.inline import drain_shard
from hybridcloud.outbox.drain.due import find_due_shards, find_suspect_shards
from hybridcloud.outbox.drain.lease import claim_if_due
from hybridcloud.outbox.operate.depths import shard_depths
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.tables import OutboxTable, TargetCell
from hybridcloud.outbox.write.context import write_messages
from silos import SiloMode, cell_silo_model, control_silo_model
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridcloud.outbox.drain.lease import Leases


class OutboxManager[M: "OutboxBase"](models.Manager[M]):
    """Writes messages as `outbox_context` requires."""

    def bulk_create(self, objs: Iterable[M], *_: Any, **__: Any) -> list[M]:
        """Validate messages and write them, in one INSERT per table."""
        messages = list(objs)
        write_messages(messages, using=self._db or alias_for_model(self.model))
        return messages


class OutboxBase(OutboxTable):
    """An outbox table; a second one subclasses a base for cells or control.

    It names its own parked, lease and failure models in ``parked_model``,
    ``lease_model`` and ``failure_model``.
    """

    claimed: Leases | None = None
    """The lease that `prepare_next_from_shard` claimed, for `drain_shard`."""

    objects: ClassVar[OutboxManager[Self]] = OutboxManager()

    class Meta:
        abstract = True

    def save(self, *, using: str | None = None, **_: Any) -> None:
        """Write the message in the open transaction, or buffer it in the context.

        Raises:
            InvalidOutboxError: the category does not belong to the scope, or either is unknown.
        """
        write_messages([self], using=using or alias_for_model(type(self)))

    def drain_shard(self, *, flush_all: bool = False) -> None:
        """Handle the messages of this message's shard in this thread.

        Args:
            flush_all: continue until the shard is empty, within a time budget;
                else stop at the message that was the newest at the start.

        Raises:
            OutboxFlushError: a handler failed; the failure was recorded first.
            OutboxDatabaseError: the engine's own SQL failed.
            OutboxTransactionError: a transaction is open.
        """
        drain_shard(self, flush_all=flush_all, leases=self.claimed)

    def should_skip_shard(self) -> bool:
        """Say whether a kill switch stops this message's whole shard."""
        return kill_switches.current().stops(ShardKey.of_columns(self.shard_key()))

    @classmethod
    def find_scheduled_shards(cls, limit: int = 1000) -> list[tuple[Any, ...]]:
        """Return due shards: not in backoff, not leased and not switched off.

        First those whose drainer vanished.
        """
        alias = alias_for_model(cls)
        lost = find_suspect_shards(cls, alias=alias, limit=limit)
        due = find_due_shards(cls, alias=alias, limit=limit)
        return [key.columns() for key in (*lost, *due)[:limit]]

    @classmethod
    def prepare_next_from_shard(cls, shard: Sequence[Any]) -> Self | None:
        """Claim a shard and return its first message; None if it is not due."""
        alias = alias_for_model(cls)
        leases = claim_if_due(cls, ShardKey.of_columns(shard), alias=alias)
        if leases is None:
            return None
        columns = dict(zip(cls.sharding_columns, shard, strict=True))
        first = cls.objects.using(alias).filter(**columns).order_by("id").first()
        if first is None:
            # The last owner emptied the shard before the claim. A lease that expires unreleased
            # would count as a crash (rule 8).
            leases.release()
        else:
            first.claimed = leases
        return first

    @classmethod
    def get_shard_depths_descending(cls, limit: int | None = 10) -> list[dict[str, Any]]:
        """Return the deepest shards' columns and ``depth``, parked included.

        Raises:
            ValueError: the limit is not positive.
        """
        return shard_depths(cls, alias=alias_for_model(cls), limit=limit)

    @classmethod
    def get_total_outbox_count(cls) -> int:
        """Return the exact number of messages in the outbox, without parked ones."""
        return cls.objects.count()


class CellOutboxBase(OutboxBase):
    """A table of messages written and handled in a cell."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CELL

    class Meta:
        abstract = True
        indexes: ClassVar = [
            models.Index(fields=[*OutboxTable.sharding_columns, "id"], name="%(class)s_shard")
        ]


class ControlOutboxBase(TargetCell, OutboxBase):
    """A table of messages written and handled in control, each for one cell."""

    silo_mode: ClassVar[SiloMode] = SiloMode.CONTROL

    class Meta:
        abstract = True
        indexes: ClassVar = [
            models.Index(fields=[*TargetCell.sharding_columns, "id"], name="%(class)s_shard")
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
