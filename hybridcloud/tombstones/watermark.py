"""The tables that hold each cascade's position, and the values to recheck."""

from __future__ import annotations

import json
from typing import Any, Final

from django.db import models
from django.db.models.functions import Now

from hybridcloud.redis import shared_redis
from silos.limits import all_silo_model

ROW: Final = "row"
TOMBSTONE: Final = "tombstone"


@all_silo_model
class CascadeWatermark(models.Model):
    """How far one walk over one foreign key has come, committed with its work.

    Attributes:
        walk: ``row`` (new rows against old tombstones) or ``tombstone`` (new
            tombstones against old rows).
        table: the referring table.
        field: the field of the referring column.
        low: everything up to this id is done; NULL: nothing is yet.
        hi: the last id of the walk under way; NULL: no walk is.
        writers: the transactions that were writing when ``hi`` was read; the walk waits for them.
        began_at: when the rows were last walked from the start.
    """

    walk = models.CharField(max_length=9, choices=[(ROW, ROW), (TOMBSTONE, TOMBSTONE)])
    table = models.CharField(max_length=63)
    field = models.CharField(max_length=63)
    low = models.BigIntegerField(null=True)
    hi = models.BigIntegerField(null=True)
    writers = models.JSONField(default=list)
    began_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "hybridcloud"
        db_table = "hybridcloud_cascadewatermark"
        constraints = (
            models.UniqueConstraint(
                fields=["walk", "table", "field"], name="cascadewatermark_once"
            ),
        )

    def show(self) -> None:
        """Copy the position to Redis, for people to see; losing it loses nothing."""
        if (redis := shared_redis()) is not None:
            position: list[Any] = [self.low, self.hi, self.writers]
            redis.put(f"{self.walk}.{self.table}.{self.field}", json.dumps(position))


@all_silo_model
class CascadeRecheck(models.Model):
    """A value that was written after its target was deleted.

    The next cascade checks the rows that have it.
    """

    table = models.CharField(max_length=63)
    field = models.CharField(max_length=63)
    object_identifier = models.BigIntegerField()

    class Meta:
        app_label = "hybridcloud"
        db_table = "hybridcloud_cascaderecheck"
        constraints = (
            models.UniqueConstraint(
                fields=["table", "field", "object_identifier"], name="cascaderecheck_once"
            ),
        )
