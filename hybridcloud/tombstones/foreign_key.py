"""A foreign key column that refers to a row of another silo.

No database constraint can enforce it. Scheduled tasks carry deletions over it
(`hybridcloud.tombstones.cascade`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.db import models

from hybridcloud.tombstones.recheck import note_pointed_at
from silos import SiloMode
from silos.limits import limit_name, silo_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    BigInteger = models.BigIntegerField[Any, Any]
else:
    BigInteger = models.BigIntegerField


class OnDelete(enum.StrEnum):
    """What happens to a row whose target was deleted."""

    CASCADE = "CASCADE"
    SET_NULL = "SET_NULL"
    DO_NOTHING = "DO_NOTHING"


class HybridCloudForeignKey(BigInteger):
    """The id of a row of another silo, as a plain bigint with an index.

        user = HybridCloudForeignKey("acme.User", on_delete="CASCADE")      # attribute user_id
        user_id = HybridCloudForeignKey("acme.User", on_delete="CASCADE")   # the same column

    Deletions arrive some time after the target was deleted, in bounded batches:
    until then rows may refer to a target that no longer exists.

    Args:
        to: the target model, ``app.Model``.
        on_delete: what happens to rows whose target was deleted: CASCADE deletes
            them through their model, so that their own messages are written;
            SET_NULL empties the column; DO_NOTHING leaves them.
    """

    def __init__(self, to: str, *, on_delete: OnDelete | str, **kwargs: Any) -> None:
        self.target = to
        try:
            self.on_delete = OnDelete(str(on_delete).upper())
        except ValueError:
            raise ValueError(
                f"Unknown on_delete {on_delete!r} of a HybridCloudForeignKey to {to!r}. "
                f"Use CASCADE, SET_NULL or DO_NOTHING."
            ) from None
        kwargs.setdefault("db_index", True)
        super().__init__(**kwargs)

    def deconstruct(self) -> Any:
        """Return how a migration recreates the field."""
        name, path, args, kwargs = super().deconstruct()
        kwargs["db_index"] = bool(getattr(self, "db_index", True))
        return name, path, [self.target, *args], {**kwargs, "on_delete": self.on_delete.value}

    def get_attname(self) -> str:
        """Return the attribute that holds the id.

        As with a ForeignKey it is ``user_id`` for a field ``user``.
        """
        return self.name if self.name.endswith("_id") else f"{self.name}_id"

    def contribute_to_class(
        self,
        cls: type[models.Model],
        name: str,
        private_only: bool = False,  # noqa: FBT001, FBT002 - Django's
    ) -> None:
        """Let the field's own name get and set the id, too."""
        super().contribute_to_class(cls, name, private_only)
        if self.attname != self.name:
            setattr(cls, self.name, _IdUnderItsName(self.attname))

    def get_target(self) -> type[models.Model]:
        """Return the target model.

        Raises:
            LookupError: there is none.
        """
        return apps.get_model(self.target)

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Note the value being written, in case its target is already deleted."""
        prepared = super().get_db_prep_save(value, connection)
        if isinstance(prepared, int) and self.on_delete is not OnDelete.DO_NOTHING:
            note_pointed_at(self, prepared, connection)
        return prepared

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check the target and the column.

        Errors are a target that is missing or in the same silo, and SET_NULL on a
        column that cannot be NULL.
        """
        return [*super().check(**kwargs), *self._check_target(), *self._check_null()]

    def _check_target(self) -> Iterable[checks.CheckMessage]:
        try:
            target = self.get_target()
        except (LookupError, ValueError):
            yield checks.Error(
                f"{self.model._meta.label}.{self.name} refers to {self.target!r}, which no installed app has.",
                hint="Name an installed model as 'app.Model'.",
                obj=self,
                id="hybridcloud.E012",
            )
            return
        here, there = silo_of(self.model), silo_of(target)
        modes = {SiloMode.CONTROL, SiloMode.CELL}
        if here not in modes or there not in modes or here is there:
            yield checks.Error(
                f"{self.model._meta.label}.{self.name} refers to {self.target}, in "
                f"{limit_name(there)}; its own model is in {limit_name(here)}.",
                hint="Inside one silo use ForeignKey, which the database enforces. Otherwise declare "
                "the silo of each model.",
                obj=self,
                id="hybridcloud.E007",
            )

    def _check_null(self) -> Iterable[checks.CheckMessage]:
        if self.on_delete is OnDelete.SET_NULL and not self.null:
            yield checks.Error(
                f"{self.model._meta.label}.{self.name} has on_delete=SET_NULL and cannot be NULL.",
                hint="Set null=True, or use CASCADE.",
                obj=self,
                id="hybridcloud.E013",
            )


class _IdUnderItsName:
    """Lets ``row.user`` and ``Model(user=…)`` mean ``user_id``."""

    def __init__(self, attname: str) -> None:
        self._attname = attname

    def __get__(self, instance: models.Model | None, owner: type[models.Model]) -> Any:
        return self if instance is None else getattr(instance, self._attname)

    def __set__(self, instance: models.Model, value: Any) -> None:
        setattr(instance, self._attname, value)
