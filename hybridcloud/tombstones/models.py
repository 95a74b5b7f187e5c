"""The tables of what was deleted in other silos.

They keep a deletion after its message was handled.
"""

from __future__ import annotations

from typing import Self

from django.db import models
from django.db.models.functions import Now

from silos import cell_silo_model, control_silo_model
from silos.router import alias_for_model


class TombstoneBase(models.Model):
    """A row of another silo that was deleted for good."""

    table_name = models.CharField(max_length=128)
    object_identifier = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.table_name} {self.object_identifier} was deleted"

    @classmethod
    def record_delete(cls, table_name: str, object_identifier: int) -> None:
        """Record that a row was deleted.

        Recording it again changes nothing, not even the time.

        Args:
            table_name: the table that the row was in, in its own silo.
            object_identifier: its id.
        """
        # Messages are handled one or more times, possibly by two workers at once.
        cls._rows().bulk_create(
            [cls(table_name=table_name, object_identifier=object_identifier)],
            ignore_conflicts=True,
        )

    @classmethod
    def _rows(cls) -> models.QuerySet[Self]:
        rows: models.QuerySet[Self] = cls._base_manager.using(alias_for_model(cls))
        return rows


@cell_silo_model
class CellTombstone(TombstoneBase):
    """In a cell: a row of control that was deleted."""

    class Meta:
        db_table = "hybridcloud_celltombstone"
        constraints = (
            models.UniqueConstraint(
                fields=["table_name", "object_identifier"], name="celltombstone_once"
            ),
        )


@control_silo_model
class ControlTombstone(TombstoneBase):
    """In control: a row of a cell that was deleted."""

    class Meta:
        db_table = "hybridcloud_controltombstone"
        constraints = (
            models.UniqueConstraint(
                fields=["table_name", "object_identifier"], name="controltombstone_once"
            ),
        )
