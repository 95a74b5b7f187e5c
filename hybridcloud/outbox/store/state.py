"""The state of shards: leases, failures and parked messages.

*Lease* says who drains a shard, *Failure* what failed and when it is retried, and the *parked*
tables keep messages that may not run now. Writers insert into the parked tables only, and only
messages with a delay. A healthy idle shard has no row in any of them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import random
from typing import Any, ClassVar

from django.db import models
from django.db.models.expressions import Func, Value
from django.db.models.functions import Now

from hybridcloud.outbox.store.tables import MessageColumns, TargetCell
from silos import cell_silo_model, control_silo_model

FIRST_DELAY = timedelta(seconds=1)
LONGEST_DELAY = timedelta(hours=1)


def longest_backoff_s(attempts: int) -> float:
    """Return seconds until the next try, doubled at each attempt; at most 1 h."""
    doubled = FIRST_DELAY.total_seconds() * 2.0 ** min(attempts - 1, 30)
    return min(doubled, LONGEST_DELAY.total_seconds())


def backoff_s(attempts: int) -> float:
    """Return the same with jitter, so that shards come back one by one."""
    return longest_backoff_s(attempts) * (0.8 + 0.2 * random())  # noqa: S311 - no secret


# Migrations name the labels of both classes: changing one makes a migration.
class Reason(models.TextChoices):
    """Why a message is parked."""

    DELAYED = "delayed", "not before its time"
    HELD = "held", "behind a failure or a switch"
    UNKNOWN = "unknown", "no handler in the running code"
    DEAD = "dead", "given up"


class Level(models.IntegerChoices):
    """How much of a shard waits for a failure."""

    SHARD = 0, "the shard"
    CATEGORY = 1, "the category"
    OBJECT = 2, "the object"


def parked_id(outbox_table: str) -> models.BigIntegerField[Any, Any]:
    """Make the primary key of a parked table, from its outbox's sequence."""
    # One sequence for both tables: a message keeps its id when it is parked or brought back, ids
    # never collide, and a lower id is older in whichever table.
    return models.BigIntegerField(
        primary_key=True, db_default=Func(Value(f"{outbox_table}_id_seq"), function="nextval")
    )


class ParkedColumns(models.Model):
    """The columns that only a parked message has."""

    reason = models.CharField(max_length=10, choices=Reason.choices)
    error = models.TextField(null=True)  # noqa: DJ001 - absent differs from empty
    parked_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True


class LeaseColumns(models.Model):
    """Who drains a shard, and until when by the database's clock."""

    shard_scope = models.IntegerField()
    shard_identifier = models.BigIntegerField()
    owner = models.TextField()
    # Fences its owner's writes: one that lost the shard acknowledges and releases nothing (rule 7).
    token = models.BigIntegerField()
    until = models.DateTimeField()
    # The last lease expired unreleased: drained alone, with each handler marked first (rule 8).
    suspect = models.BooleanField(default=False, db_default=False)
    handling = models.BigIntegerField(null=True)

    class Meta:
        abstract = True


class FailureColumns(models.Model):
    """What failed in a shard, how often, and when it is retried.

    ``category``, ``object_identifier`` and ``message_id`` name what failed;
    ``level`` says how much of the shard waits for it.
    """

    shard_scope = models.IntegerField()
    shard_identifier = models.BigIntegerField()
    level = models.SmallIntegerField(choices=Level.choices)
    category = models.IntegerField()
    object_identifier = models.BigIntegerField()
    message_id = models.BigIntegerField()
    attempts = models.IntegerField()
    scheduled_from = models.DateTimeField(db_default=Now())
    # The default sorts before every time, so a failure without a backoff is due.
    scheduled_for = models.DateTimeField(db_default=Value(datetime(1970, 1, 1, tzinfo=UTC)))
    crashed = models.BooleanField(default=False, db_default=False)
    last_error = models.TextField()
    last_traceback = models.TextField()
    first_failure_at = models.DateTimeField(db_default=Now())
    last_failure_at = models.DateTimeField(db_default=Now())

    class Meta:
        abstract = True

    def last_delay(self) -> timedelta:
        """Return the last backoff, at least half a second."""
        return max(self.scheduled_for - self.scheduled_from, FIRST_DELAY / 2)

    def next_schedule(self, now: datetime) -> datetime:
        """Return when to retry a failure at ``now``: doubled, at most 1 h."""
        return now + min(self.last_delay() * 2, LONGEST_DELAY)


def _group_indexes(*shard: str) -> list[models.Index]:
    # One finds delayed messages that became due, the other what is parked of a shard or group.
    return [
        models.Index(fields=["reason", "scheduled_for"], name="%(class)s_due"),
        models.Index(
            fields=[*shard, "category", "object_identifier", "id"], name="%(class)s_group"
        ),
    ]


def _one_per_level(*shard: str) -> list[models.BaseConstraint]:
    # One failure for what waits together: attempts belong to one message or group (rule 4).
    # A level's number says how many columns it adds to those of the shard.
    group = (*shard, "category", "object_identifier")
    return [
        models.UniqueConstraint(
            fields=group[: len(shard) + level],
            condition=models.Q(level=level.value),
            name=f"%(class)s_{level.name.lower()}",
        )
        for level in Level
    ]


def _failure_indexes(*shard: str) -> list[models.Index]:
    # Partial, since crashes are rare and each tick asks for those that are due.
    crashed = models.Q(crashed=True)
    return [
        models.Index(fields=shard, name="%(class)s_of_shard"),
        models.Index(fields=["scheduled_for"], condition=crashed, name="%(class)s_crashed"),
    ]


_CELL_SHARD = ("shard_scope", "shard_identifier")
_CONTROL_SHARD = ("cell_name", *_CELL_SHARD)


class CellParkedBase(ParkedColumns, MessageColumns):
    """A table of parked messages of a cell outbox; declare its `parked_id`."""

    class Meta:
        abstract = True
        indexes: ClassVar = _group_indexes(*_CELL_SHARD)


class ControlParkedBase(ParkedColumns, TargetCell, MessageColumns):
    """A table of parked messages of a control outbox; declare its `parked_id`."""

    class Meta:
        abstract = True
        indexes: ClassVar = _group_indexes(*_CONTROL_SHARD)


class CellLeaseBase(LeaseColumns):
    """A table of leases for the shards of a cell outbox."""

    pk = models.CompositePrimaryKey(*_CELL_SHARD)

    class Meta:
        abstract = True


class ControlLeaseBase(TargetCell, LeaseColumns):
    """A table of leases for the shards of a control outbox."""

    pk = models.CompositePrimaryKey(*_CONTROL_SHARD)

    class Meta:
        abstract = True


class CellFailureBase(FailureColumns):
    """A table of failures in the shards of a cell outbox."""

    class Meta:
        abstract = True
        constraints: ClassVar = _one_per_level(*_CELL_SHARD)
        indexes: ClassVar = _failure_indexes(*_CELL_SHARD)


class ControlFailureBase(TargetCell, FailureColumns):
    """A table of failures in the shards of a control outbox."""

    class Meta:
        abstract = True
        constraints: ClassVar = _one_per_level(*_CONTROL_SHARD)
        indexes: ClassVar = _failure_indexes(*_CONTROL_SHARD)


@cell_silo_model
class CellParked(CellParkedBase):
    """The messages of `CellOutbox` that may not run now."""

    id = parked_id("hybridcloud_celloutbox")

    class Meta(CellParkedBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_cellparked"


@control_silo_model
class ControlParked(ControlParkedBase):
    """The messages of `ControlOutbox` that may not run now."""

    id = parked_id("hybridcloud_controloutbox")

    class Meta(ControlParkedBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_controlparked"


@cell_silo_model
class CellLease(CellLeaseBase):
    """The leases of the shards of `CellOutbox`."""

    class Meta(CellLeaseBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_celllease"


@control_silo_model
class ControlLease(ControlLeaseBase):
    """The leases of the shards of `ControlOutbox`."""

    class Meta(ControlLeaseBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_controllease"


@cell_silo_model
class CellFailure(CellFailureBase):
    """The failures in the shards of `CellOutbox`."""

    class Meta(CellFailureBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_cellfailure"


@control_silo_model
class ControlFailure(ControlFailureBase):
    """The failures in the shards of `ControlOutbox`."""

    class Meta(ControlFailureBase.Meta):
        app_label = "hybridcloud"
        db_table = "hybridcloud_controlfailure"
