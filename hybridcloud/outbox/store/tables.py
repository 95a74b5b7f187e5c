"""The outbox tables: columns, keys and the names that the statements use.

Writers INSERT and the engine DELETEs; no message row is ever updated.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

from django.apps import apps
from django.db import models
from django.db.models.functions import Now

from hybridcloud.conf import settings
from hybridcloud.outbox.declare.category import category_choices, category_name
from hybridcloud.outbox.declare.scope import scope_choices, scope_name

if TYPE_CHECKING:
    from datetime import timedelta

    from silos import SiloMode

_OBJECT: Final = ("category", "object_identifier")


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class TableNames(NamedTuple):
    """The quoted names of an outbox table and of the tables beside it."""

    label: str
    outbox: str
    parked: str
    lease: str
    failure: str
    sharding_columns: tuple[str, ...]


class MessageColumns(models.Model):
    """The columns of a message, the same in the outbox and the parked table."""

    # Times default to the database's clock: those of writers differ, and due times are compared.

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
    coalesced_columns: ClassVar[tuple[str, ...]] = (*sharding_columns, *_OBJECT)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        cell = getattr(self, "cell_name", None)
        return (
            f"message {self.pk} of {category_name(self.category)}"
            f" object {self.object_identifier} in {scope_name(self.shard_scope)}"
            f":{self.shard_identifier}{f' for {cell}' if cell else ''}"
        )

    def shard_key(self) -> tuple[Any, ...]:
        """Return the target cell, where there is one, scope and shard identifier."""
        return tuple(getattr(self, column) for column in self.sharding_columns)


class TargetCell(models.Model):
    """The column that only control messages have: the cell a message is for."""

    # First in the key: a disabled or broken cell then costs one probe for all of its shards.
    cell_name = models.CharField(max_length=48)

    sharding_columns: ClassVar[tuple[str, ...]] = ("cell_name", "shard_scope", "shard_identifier")
    coalesced_columns: ClassVar[tuple[str, ...]] = (*sharding_columns, *_OBJECT)

    class Meta:
        abstract = True


class OutboxTable(MessageColumns):
    """An outbox table as the engine sees it; `OutboxBase` adds its methods.

    Attributes:
        parked_model: label of the model of its parked messages.
        lease_model: label of the model of its leases.
        failure_model: label of the model of its failures.
        silo_mode: the silo in which its messages are written and handled.
        delay: how long a message is deferred when it is saved; None: not at all.
    """

    parked_model: ClassVar[str]
    lease_model: ClassVar[str]
    failure_model: ClassVar[str]
    silo_mode: ClassVar[SiloMode]

    delay: timedelta | None = None

    class Meta:
        abstract = True

    @classmethod
    def tables(cls) -> TableNames:
        """Return the table names for the engine's statements."""
        return table_names(cls)


# Cached, as every statement asks; a model's tables never change while a process runs.
@cache
def table_names(outbox: type[OutboxTable]) -> TableNames:
    """Return the table names for the engine's statements."""
    own, labels = outbox._meta, (outbox.parked_model, outbox.lease_model, outbox.failure_model)
    parked, lease, failure = (f'"{apps.get_model(label)._meta.db_table}"' for label in labels)
    return TableNames(
        own.label, f'"{own.db_table}"', parked, lease, failure, outbox.sharding_columns
    )


def outbox_models(mode: SiloMode) -> tuple[type[OutboxTable], ...]:
    """Return the outbox tables of a silo mode, in the order of the settings."""
    labels = settings().outbox_models.get(mode.name, ())
    return tuple(cast("type[OutboxTable]", apps.get_model(label)) for label in labels)
