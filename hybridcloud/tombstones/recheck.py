"""Notes writes of foreign key values whose target is already deleted.

A walk by id may have passed such a row, and would not see it again. Values are
gathered while SQL is compiled, and looked up once per transaction, after its
commit: those with a tombstone are recorded for the next cascade.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import DatabaseError, transaction

from silos import SiloMode
from silos.limits import silo_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Model

    from hybridcloud.tombstones.foreign_key import HybridCloudForeignKey

_LOG = logging.getLogger(__name__)
_PENDING = "_hybridcloud_pointed_at"


def tombstones_in(mode: SiloMode) -> type[Model]:
    """Return the table in which a silo keeps the other side's deletions."""
    name = "CellTombstone" if mode is SiloMode.CELL else "ControlTombstone"
    return apps.get_model("hybridcloud", name)


class PointedAt:
    """The values that one transaction wrote, by field."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self.values: dict[HybridCloudForeignKey, set[int]] = {}

    def wait_for_statement(self) -> None:
        """Look the values up after the statement, as no commit will follow."""
        if self._after_statement not in self._connection.execute_wrappers:
            self._connection.execute_wrappers.append(self._after_statement)

    def _after_statement(
        self,
        execute: Callable[..., Any],
        sql: str,
        params: Any,
        many: bool,  # noqa: FBT001 - Django's
        context: Any,
    ) -> Any:
        self._connection.execute_wrappers.remove(self._after_statement)
        result = execute(sql, params, many, context)
        if self._connection.in_atomic_block:
            transaction.on_commit(self.look_up, using=self._connection.alias)
        else:
            self.look_up()
        return result

    def look_up(self) -> None:
        """Record values with a tombstone for the next cascade.

        Never fails the writer: the daily rescan finds what is missed here.
        """
        values, self.values = self.values, {}
        for field, pointed_at in values.items():
            try:
                _put_down(field, pointed_at, self._connection.alias)
            except DatabaseError:
                _LOG.exception("Values of %s not looked up; the daily rescan will", field)


def note_pointed_at(
    field: HybridCloudForeignKey, value: int, connection: BaseDatabaseWrapper
) -> None:
    """Remember a value that is being written, and look it up after the commit."""
    pending = getattr(connection, _PENDING, None)
    if pending is None:
        pending = PointedAt(connection)
        setattr(connection, _PENDING, pending)
    pending.values.setdefault(field, set()).add(value)
    if not connection.in_atomic_block:
        pending.wait_for_statement()
    elif not any(entry[1] == pending.look_up for entry in connection.run_on_commit):
        transaction.on_commit(pending.look_up, using=connection.alias)


def _put_down(field: HybridCloudForeignKey, values: set[int], alias: str) -> None:
    from hybridcloud.tombstones.watermark import CascadeRecheck  # noqa: PLC0415 - Django app registry

    mode = silo_of(field.model)
    if not isinstance(mode, SiloMode):
        return
    gone = (
        tombstones_in(mode)
        ._base_manager.using(alias)
        .filter(table_name=field.get_target()._meta.db_table, object_identifier__in=values)
        .values_list("object_identifier", flat=True)
    )
    CascadeRecheck._base_manager.using(alias).bulk_create(
        [
            CascadeRecheck(
                table=field.model._meta.db_table, field=field.name, object_identifier=each
            )
            for each in gone
        ],
        ignore_conflicts=True,
    )
