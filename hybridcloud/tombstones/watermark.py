"""How far each cascade has come: without it every tick would walk all rows and all tombstones again."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from django.db import models
from django.db.models.functions import Now
from redis.exceptions import RedisError

from hybridcloud.redis import redis_client
from silos.limits import all_silo_model

_LOG = logging.getLogger(__name__)
ROW: Final = "row"
TOMBSTONE: Final = "tombstone"


@all_silo_model
class CascadeWatermark(models.Model):
    """How far one walk over one foreign key has come, committed with its work.

    Attributes:
        walk: ``row`` (new rows against old tombstones) or ``tombstone`` (new
            tombstones against old rows).
        table: the table that points.
        field: its column's field.
        low: everything up to here is done; NULL: nothing is yet.
        hi: how far the walk under way goes; NULL: none is.
        writers: who was writing when ``hi`` was read; the walk waits for them.
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
        """Copy the position to redis, for whoever looks; losing it loses nothing."""
        client = redis_client()
        if client is not None:
            position: list[Any] = [self.low, self.hi, self.writers]
            try:
                client.set(f"{self.walk}.{self.table}.{self.field}", json.dumps(position))
            except RedisError:
                _LOG.debug("Watermark of %s.%s not shown in redis", self.table, self.field)


@all_silo_model
class CascadeRecheck(models.Model):
    """A value that was written after its target was gone: its rows are looked at by the next cascade."""

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
