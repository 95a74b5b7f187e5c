"""The models that the benchmarks write, with and without an outbox."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models.functions import Now

from hybridcloud.outbox import CellOutboxProducingManager, ReplicatedCellModel
from silos import cell_silo_model
from tests.benchmarks.subjects.categories import Category

LONG_AGO = datetime(2016, 8, 1, tzinfo=UTC)


@cell_silo_model
class PerMessageOutbox(models.Model):
    """The outbox table of the reference: its columns, key and three indexes."""

    shard_scope = models.PositiveIntegerField()
    shard_identifier = models.BigIntegerField()
    category = models.PositiveIntegerField()
    object_identifier = models.BigIntegerField()
    payload = models.JSONField(null=True)
    scheduled_from = models.DateTimeField(db_default=Now())
    scheduled_for = models.DateTimeField(default=LONG_AGO)
    date_added = models.DateTimeField(db_default=Now())

    sharding = ("shard_scope", "shard_identifier")
    coalesced = ("shard_scope", "shard_identifier", "category", "object_identifier")

    class Meta:
        indexes = (
            models.Index(
                fields=["shard_scope", "shard_identifier", "category", "object_identifier"],
                name="bench_pm_coalesced",
            ),
            models.Index(
                fields=["shard_scope", "shard_identifier", "scheduled_for"], name="bench_pm_due"
            ),
            models.Index(fields=["shard_scope", "shard_identifier", "id"], name="bench_pm_shard"),
        )

    def __str__(self) -> str:
        return f"message {self.pk}"


@cell_silo_model
class Walked(ReplicatedCellModel):
    """A model to backfill; SQL makes its messages."""

    category = Category.WALKED

    organization_id = models.BigIntegerField()
    name = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.name

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Do nothing: the walk is measured, not the delivery."""


@cell_silo_model
class WalkedWithPayload(ReplicatedCellModel):
    """A model to backfill; Python makes its messages."""

    category = Category.WALKED_WITH_PAYLOAD

    organization_id = models.BigIntegerField()
    name = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.name

    def payload_for_update(self) -> dict[str, Any]:
        return {"name": self.name}

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Do nothing: the walk is measured, not the delivery."""


class DocumentColumns(models.Model):
    """The columns of all documents."""

    organization_id = models.BigIntegerField(db_index=True)
    name = models.CharField(max_length=100)
    body = models.TextField(default="")

    class Meta:
        abstract = True


@cell_silo_model
class Plain(DocumentColumns):
    """A document that is not replicated."""

    def __str__(self) -> str:
        return self.name


@cell_silo_model
class Document(ReplicatedCellModel, DocumentColumns):
    """A document whose changes are replicated."""

    category = Category.DOCUMENT

    objects: ClassVar[CellOutboxProducingManager[Self]] = CellOutboxProducingManager()

    def __str__(self) -> str:
        return self.name

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Do nothing: what is measured is the way here."""

    @classmethod
    def handle_async_deletion(cls, identifier: int, shard_identifier: int, payload: object) -> None:
        """Do nothing."""


class HeardDocument(Document):
    """A document whose saves have a signal receiver: the long way."""

    class Meta:
        proxy = True

    def __str__(self) -> str:
        return self.name


@cell_silo_model
class TriggeredDocument(ReplicatedCellModel, DocumentColumns):
    """A document whose messages are written by triggers."""

    category = Category.TRIGGERED
    outbox_via = "trigger"

    def __str__(self) -> str:
        return self.name

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Do nothing: what is measured is the way here."""
