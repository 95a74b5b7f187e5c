"""The database router: model and current silo decide the alias.

    DATABASE_ROUTERS = ["silos.router.SiloRouter"]

Models without a limit are left to other routers, or else to `default`. The router also enforces the
limits of models: a query on a model of another silo raises an `AvailabilityError`. `.using(alias)`
bypasses every router; inside `assume_silo`, `silos.guard` checks it instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .aliases import (
    alias_for_limit,
    alias_for_model,
    alias_of,
    current_alias,
    silo_aliases,
)
from .errors import AvailabilityError
from .limits import EVERY_SILO, SiloLimit, silo_of
from .migrate import allow_migrate
from .mode import CurrentSilo, SiloMode, get_current_silo

if TYPE_CHECKING:
    from django.db.models import Model

__all__ = ["SiloRouter", "alias_for_model", "alias_of", "current_alias", "silo_aliases"]


class SiloRouter:
    """Routes each model to the database of the silo in which it lives."""

    def db_for_read(
        self, model: type[Model], instance: Model | None = None, **_hints: Any
    ) -> str | None:
        """Return the alias to read from; None for a model without a limit."""
        return _route(model, instance, "read")

    def db_for_write(
        self, model: type[Model], instance: Model | None = None, **_hints: Any
    ) -> str | None:
        """Return the alias to write to; None for a model without a limit."""
        return _route(model, instance, "written")

    def allow_relation(self, obj1: Model, obj2: Model, **_hints: Any) -> bool | None:
        """Allow relations inside one database; None if a side has no limit."""
        limits = (silo_of(type(obj1)), silo_of(type(obj2)))
        if None in limits:
            return None
        held = (obj1._state.db, obj2._state.db)
        if None not in held:
            return held[0] == held[1]
        return limits[0] is limits[1] or EVERY_SILO in limits

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        """Allow migrations only where a model lives; see `silos.migrate`."""
        return allow_migrate(db, app_label, model_name, hints)


def _route(model: type[Model], instance: Model | None, action: str) -> str | None:
    limit = silo_of(model)
    if limit is None:
        return None
    touched = f"{model._meta.label} (its rows {action})"
    held = instance._state.db if instance is not None else None
    if instance is None or held is None or held not in silo_aliases():
        return alias_for_limit(limit, touched)
    if _monolith_leaves_open(limit, held):
        return held
    expected = alias_for_limit(limit, touched)
    if held == expected:
        return held
    # Using `held` would be an access across silos; using `expected` would duplicate the row there.
    current = get_current_silo()
    lives_in = str(CurrentSilo(*silo_aliases()[held]))
    msg = (
        f"{touched} through an instance of {instance._meta.label} that lives in {lives_in} (alias "
        f"{held!r}), while {current} uses alias {expected!r}. Load the instance in the silo that "
        "uses it, or enter the instance's silo with assume_silo()."
    )
    raise AvailabilityError(msg, touched=touched, current=str(current), lives_in=lives_in)


def _monolith_leaves_open(limit: SiloLimit, held: str) -> bool:
    """Return whether the instance alone decides, in a MONOLITH without a cell."""
    current = get_current_silo()
    if current.mode is not SiloMode.MONOLITH:
        return False
    if limit is EVERY_SILO:
        return True
    in_cell = silo_aliases()[held][0] is SiloMode.CELL
    return limit is SiloMode.CELL and current.cell is None and in_cell
