"""Querysets and managers whose bulk operations write messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.db import models
from django.db.models import Q

from hybridcloud.errors import OutboxError
from hybridcloud.outbox.write.bulk_update import update
from hybridcloud.outbox.write.context import joined_context
from hybridcloud.outbox.write.messages import is_triggered, produce, triggered
from hybridcloud.outbox.write.sink import Carrying, telling

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hybridcloud.outbox.write.mixins import ProducingModel


class ProducingQuerySet[M: models.Model](Carrying[M]):
    """A queryset of a producing model; derive your own from this class."""

    def update(self, **kwargs: Any) -> int:
        """Set fields of all rows, write messages, return how many matched."""
        query = self.query
        if not kwargs or query.is_sliced or query.combinator:
            # There is nothing to do, or Django raises.
            return super().update(**kwargs)
        if query.distinct_fields:
            # Before Django 6 update() ignored them and changed every row.
            raise TypeError("Cannot call update() after .distinct(*fields).")
        self._for_write = True
        count = update(self, kwargs)
        self._result_cache = None
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete all rows and what cascades, and write their messages."""
        self._for_write = True
        if is_triggered(self.model):
            with triggered(self._producer, self.db, None):
                return super().delete()
        # Django sends a signal for each row; their messages are gathered for one INSERT.
        with joined_context(self.db, flush=self._producer.default_flush):
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,  # noqa: FBT001, FBT002 - Django's signature
        update_conflicts: bool = False,  # noqa: FBT001, FBT002
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """Insert rows and write the messages about them, in one transaction.

        Raises:
            OutboxError: with ``ignore_conflicts``, since it is unknown which rows were inserted;
                or a row has no id, and a sequence does not give it one.
        """
        created = list(objs)
        insert = partial(
            super().bulk_create,
            created,
            batch_size=batch_size,
            ignore_conflicts=ignore_conflicts,
            update_conflicts=update_conflicts,
            update_fields=update_fields,
            unique_fields=unique_fields,
        )
        if is_triggered(self.model):
            # Triggers see the rows that were inserted, whatever the conflicts.
            with triggered(self._producer, self._written_db, None):
                return insert()
        if ignore_conflicts:
            raise OutboxError(
                f"bulk_create(ignore_conflicts=True) of {self.model._meta.label}: PostgreSQL does "
                f"not tell which rows were left out, nor their ids. Use update_conflicts=True."
            )
        self._refuse_without_ids(created)
        self._for_write = True
        # Before the INSERT, which sets the ids.
        had_ids = any(obj.pk is not None for obj in created)
        with joined_context(self.db, flush=self._producer.default_flush), telling(created):
            result = insert()
            rows: Sequence[Any] = result
            if update_conflicts and created:
                rows = self._as_stored(result, unique_fields or (), had_ids=had_ids)
            produce(self._producer, rows, using=self.db)
        return result

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Set each row's fields to its instance's and write the messages."""
        # Django updates in batches; their messages are gathered for one INSERT.
        with joined_context(self._written_db, flush=self._producer.default_flush):
            return super().bulk_update(objs, fields, batch_size)

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def bulk_delete(self, objs: Iterable[M]) -> tuple[int, dict[str, int]]:
        """Delete these instances' rows and what cascades, and write messages."""
        pks = [obj.pk for obj in objs]
        if not pks:
            return 0, {}
        return self._producer.outbox_rows.using(self._written_db).filter(pk__in=pks).delete()

    bulk_delete.alters_data = True  # type: ignore[attr-defined]

    @property
    def _producer(self) -> type[ProducingModel]:
        return cast("type[ProducingModel]", self.model)

    @property
    def _written_db(self) -> str:
        # The router may read from another database.
        self._for_write = True
        return self.db

    def _refuse_without_ids(self, objs: Sequence[models.Model]) -> None:
        pk = self.model._meta.pk
        if isinstance(pk, models.AutoField) or pk.has_db_default():
            return
        for obj in objs:
            if obj.pk is None:
                # As Django would do, for a field that makes its own ids.
                obj.pk = pk.get_pk_value_on_save(obj)
            if obj.pk is None:
                raise OutboxError(
                    f"No id for bulk_create of {self.model._meta.label}: its primary key does not "
                    f"come from a sequence, so messages could not name the rows. Set the ids "
                    f"before, or save the instances one by one."
                )

    def _as_stored(
        self, objs: Sequence[M], unique_fields: Collection[str], *, had_ids: bool
    ) -> list[models.Model]:
        """Return the rows as an upsert left them, which instances do not show."""
        rows = self._producer.outbox_rows.using(self.db).order_by("pk")
        names = [self.model._meta.pk.name if name == "pk" else name for name in unique_fields]
        if not had_ids or names == [self.model._meta.pk.name]:
            return list(rows.filter(pk__in=[obj.pk for obj in objs]))
        # A row that existed keeps its id, so instances with given ids are found by the unique fields.
        fields: list[Any] = [self.model._meta.get_field(name) for name in names]
        wanted = [Q(**{f.attname: getattr(obj, f.attname) for f in fields}) for obj in objs]
        return list(rows.filter(Q(*wanted, _connector=Q.OR)))


class ProducingManager[M: models.Model](models.Manager[M]):
    """What both public managers share; derive your own from one of them.

    A queryset of your own derives from `ProducingQuerySet`; use ``from_queryset``.
    """

    _queryset_class = ProducingQuerySet

    def bulk_delete(self, objs: Iterable[M]) -> tuple[int, dict[str, int]]:
        """Delete these instances' rows and what cascades, and write messages."""
        return self.get_queryset().bulk_delete(objs)  # type: ignore[attr-defined, no-any-return]


class CellOutboxProducingManager[M: models.Model](ProducingManager[M]):
    """The manager of a producing model of cells; use it as ``objects``."""


class ControlOutboxProducingManager[M: models.Model](ProducingManager[M]):
    """The manager of a producing model of control; use it as ``objects``."""


def is_producing(manager: models.Manager[Any]) -> bool:
    """Say whether a manager's bulk operations write messages; for checks."""
    return isinstance(manager.get_queryset(), ProducingQuerySet)
