"""Cascades: carry deletions over foreign keys between silos.

Each key has two walks, both in bounded batches behind a fence (see "A position
that may pass" in docs/explanation/engine.md), so that rows which commit late are
not missed: new rows against old tombstones, and new tombstones against old rows.
Values that were written after their target was deleted are checked separately,
and once a day all rows are walked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.db import connections, models, transaction
from django.db.models.functions import Now
from django.utils.module_loading import import_string

from hybridcloud import options
from hybridcloud.conf import settings
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.store.fence import Fence, newest_id
from hybridcloud.tombstones.foreign_key import HybridCloudForeignKey, OnDelete
from hybridcloud.tombstones.recheck import tombstones_in
from hybridcloud.tombstones.watermark import ROW, TOMBSTONE, CascadeRecheck, CascadeWatermark
from silos import SiloMode
from silos.limits import silo_of
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

DISABLED: Final = "hybrid_cloud.disable_tombstone_cleanup"
RETENTION: Final = "hybridcloud.tombstones.retention_days"
BATCH: Final = 500
_TOMBSTONES_AT_ONCE: Final = 5000
_RESCAN: Final = timedelta(days=1)

options.register(
    DISABLED, bool, default=False, doc="Stops all cascades over foreign keys between silos."
)
options.register(
    RETENTION,
    int,
    90,
    doc="Days to keep a tombstone; after them it is deleted once every key is past it. 0: forever.",
)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key into another silo: the referring model and its field."""

    model: type[models.Model]
    field: HybridCloudForeignKey

    @property
    def table(self) -> str:
        """The referring table."""
        return self.model._meta.db_table

    @property
    def target_table(self) -> str:
        """The table that is referred to, as tombstones name it."""
        return self.field.get_target()._meta.db_table

    def rows(self) -> models.QuerySet[models.Model]:
        """Return all rows that might refer to a target, hidden ones included."""
        return self.model._base_manager.using(alias_for_model(self.model))


def foreign_keys(mode: SiloMode) -> Iterator[ForeignKey]:
    """Return the keys of a silo's models, except those with DO_NOTHING."""
    for model in apps.get_models():
        if silo_of(model) is mode and not model._meta.proxy:
            for field in model._meta.local_concrete_fields:
                if (
                    isinstance(field, HybridCloudForeignKey)
                    and field.on_delete is not OnDelete.DO_NOTHING
                ):
                    yield ForeignKey(model, field)


def find_foreign_key(label: str, field_name: str) -> ForeignKey:
    """Return a key by its model's label and its field's name.

    Raises:
        LookupError: there is no such key.
    """
    model = apps.get_model(label)
    field = model._meta.get_field(field_name)
    if not isinstance(field, HybridCloudForeignKey):
        raise LookupError(  # noqa: TRY004 - a name that is not found
            f"Not a key between silos: {label}.{field_name}. Name a HybridCloudForeignKey."
        )
    return ForeignKey(model, field)


def process_hybrid_cloud_foreign_key_cascade_batch(
    key: ForeignKey, *, batch_size: int = BATCH
) -> bool:
    """Do one batch of each walk over a key.

    Call it in the silo of the referring model.

    Args:
        key: the key.
        batch_size: how many rows are read, and changed, at most.

    Returns:
        Whether there is more to do now. For a walk that waits for writers there is not.
    """
    if options.get(DISABLED):
        return False
    cascade = _Cascade(key, batch_size)
    more = [cascade.recheck(), cascade.walk_rows(), cascade.walk_tombstones()]
    return any(more)


class _Cascade:
    """The work on one key."""

    def __init__(self, key: ForeignKey, batch_size: int) -> None:
        self._key = key
        self._most = batch_size
        self._alias = alias_for_model(key.model)
        self._connection = connections[self._alias]
        mode = silo_of(key.model)
        assert isinstance(mode, SiloMode)  # noqa: S101 - the check E007 refuses all others
        self._tombstones = tombstones_in(mode)

    def recheck(self) -> bool:
        """Handle values that were written after their target was deleted."""
        where = {"table": self._key.table, "field": self._key.field.name}
        notes = CascadeRecheck._base_manager.using(self._alias).filter(**where)
        values = list(notes.values_list("object_identifier", flat=True)[: self._most])
        if not values:
            return False
        with self._transaction():
            if not self._apply(self._key.rows(), values):
                return True
            notes.filter(object_identifier__in=values).delete()
        return len(values) == self._most

    def walk_rows(self) -> bool:
        """Check new rows against all tombstones of their target."""
        pk = self._key.model._meta.pk.attname
        return self._walk(
            ROW, self._key.table, str(self._key.model._meta.pk.column), self._rows_step(pk)
        )

    def _rows_step(self, pk: str) -> Callable[[CascadeWatermark], int | None]:
        def step(mark: CascadeWatermark) -> int | None:
            rows = _between(self._key.rows(), pk, mark)
            ids = list(rows.order_by(pk).values_list(pk, flat=True)[: self._most])
            if not ids:
                return mark.hi
            gone = self._tombstones._base_manager.using(self._alias).filter(
                table_name=self._key.target_table,
                object_identifier__in=self._key.rows()
                .filter(**{f"{pk}__in": ids, f"{self._key.field.name}__isnull": False})
                .values(self._key.field.name),
            )
            values = list(gone.values_list("object_identifier", flat=True))
            if values and not self._apply(self._key.rows().filter(**{f"{pk}__in": ids}), values):
                return None
            return int(ids[-1]) if len(ids) == self._most else mark.hi

        return step

    def walk_tombstones(self) -> bool:
        """Check new tombstones against all rows that refer to their table."""
        table = self._tombstones._meta.db_table

        def step(mark: CascadeWatermark) -> int | None:
            found = list(
                _between(self._tombstones._base_manager.using(self._alias), "id", mark)
                .order_by("id")
                .values_list("id", "table_name", "object_identifier")[:_TOMBSTONES_AT_ONCE]
            )
            values = [each for _, name, each in found if name == self._key.target_table]
            if values and not self._apply(self._key.rows(), values):
                return None
            return int(found[-1][0]) if len(found) == _TOMBSTONES_AT_ONCE else mark.hi

        return self._walk(TOMBSTONE, table, "id", step)

    def _walk(
        self, walk: str, table: str, column: str, step: Callable[[CascadeWatermark], int | None]
    ) -> bool:
        """Do one more batch of a walk; return whether there is more to do now.

        The position is committed with the work.
        """
        with self._transaction():
            mark = self._locked(walk)
            if mark is None:
                return False
            if mark.hi is None:
                newest = newest_id(self._connection, table, column=column)
                if newest is None or (mark.low is not None and newest <= mark.low):
                    self._maybe_begin_again(mark)
                    return False
                mark.hi = newest
                # The fence must be taken by a later statement than the one that read the newest id.
                mark.writers = list(Fence.take(self._connection, table).writers)
                mark.save(using=self._alias)
            if not Fence.kept(table, mark.writers).is_open(self._connection):
                return False
            reached = step(mark)
            if reached is None:
                return True
            mark.low = reached
            more = reached < mark.hi
            if not more:
                mark.hi, mark.writers = None, []
            mark.save(using=self._alias)
        mark.show()
        return more

    def _locked(self, walk: str) -> CascadeWatermark | None:
        """Return the position, locked; None if another task holds it."""
        what = {"walk": walk, "table": self._key.table, "field": self._key.field.name}
        rows = CascadeWatermark._base_manager.using(self._alias)
        rows.bulk_create([CascadeWatermark(**what)], ignore_conflicts=True)
        return rows.select_for_update(skip_locked=True).filter(**what).first()

    def _maybe_begin_again(self, mark: CascadeWatermark) -> None:
        """Start over once a day, for changes that went unnoticed otherwise."""
        if mark.walk == ROW:
            CascadeWatermark._base_manager.using(self._alias).filter(
                pk=mark.pk, began_at__lt=Now() - _RESCAN
            ).update(low=None, began_at=Now())

    def _transaction(self) -> Any:
        return outbox_context(transaction.atomic(using=self._alias))

    def _apply(self, rows: models.QuerySet[models.Model], values: Collection[int]) -> bool:
        """Delete or empty a batch of the rows that refer to these values.

        Returns:
            Whether that was all of them.
        """
        name = self._key.field.name
        pointing = rows.filter(**{f"{name}__in": values}).order_by("pk")
        ids = list(
            pointing.select_for_update(of=("self",)).values_list("pk", flat=True)[: self._most]
        )
        if not ids:
            return True
        these = self._key.rows().filter(pk__in=ids)
        if self._key.field.on_delete is OnDelete.SET_NULL:
            these.update(**{name: None})
        elif not self._delete(these, ids):
            return False
        return len(ids) < self._most

    def _delete(self, rows: models.QuerySet[models.Model], ids: Collection[int]) -> bool:
        """Delete through the model, for its own messages; or by the user's hook."""
        hook = settings().cascade_delete
        if hook is None:
            rows.delete()
            return True
        return bool(import_string(hook)(self._key.model, ids))


def _between(
    rows: models.QuerySet[models.Model], column: str, mark: CascadeWatermark
) -> models.QuerySet[models.Model]:
    rows = rows.filter(**{f"{column}__lte": mark.hi})
    return rows if mark.low is None else rows.filter(**{f"{column}__gt": mark.low})


def prune_tombstones(mode: SiloMode) -> int:
    """Delete tombstones past their retention that every key has processed.

    Returns:
        How many were deleted.
    """
    days = options.get(RETENTION)
    if not days:
        return 0
    tombstones = tombstones_in(mode)
    alias = alias_for_model(tombstones)
    keys = list(foreign_keys(mode))
    marks = CascadeWatermark._base_manager.using(alias).filter(walk=TOMBSTONE, low__isnull=False)
    passed = {(mark.table, mark.field): mark.low for mark in marks}
    if any((key.table, key.field.name) not in passed for key in keys):
        return 0
    old = tombstones._base_manager.using(alias).filter(created_at__lt=Now() - timedelta(days=days))
    if keys:
        old = old.filter(id__lte=min(low for low in passed.values() if low is not None))
    return old.delete()[0]


__all__ = [
    "ForeignKey",
    "find_foreign_key",
    "foreign_keys",
    "process_hybrid_cloud_foreign_key_cascade_batch",
    "prune_tombstones",
]
