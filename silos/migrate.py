"""Decides on which databases a migration's operations run.

Operations on a model run where the model lives. Operations without a model (RunPython, RunSQL,
extensions) run where the models of their app live; if the app has models of several silos, they
need `hints={"silo": SiloMode.CELL}`. For a model that was deleted from the code, its app's
AppConfig says where it lived: `removed_models = {"oldmodel": SiloMode.CELL}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS

from .aliases import silo_aliases
from .errors import SiloConfigurationError
from .limits import CONTRIB_LIMITS, EVERY_SILO, SiloLimit, limit_name, silo_of
from .mode import SiloMode

if TYPE_CHECKING:
    from collections.abc import Mapping


def allow_migrate(
    db: str, app_label: str, model_name: str | None, hints: Mapping[str, Any]
) -> bool | None:
    """Return whether an operation runs on an alias; None leaves it to others.

    Raises:
        SiloConfigurationError: In an app with models of several silos, the operation has neither
            a model nor a `silo` hint, or its model is no longer in the code nor in
            `removed_models`.
    """
    if "silo" in hints:
        return _lives_on(_hinted(hints["silo"], app_label), db)
    model = hints.get("model")
    if model_name is None and model is not None:
        # Django documents the hint `model` for a RunPython that works on one model.
        app_label, model_name = model._meta.app_label, model._meta.model_name
    if model_name is not None:
        known, limit = _limit_of_model(app_label, model_name, model)
        if known:
            return _lives_on(limit, db)
    limits = _limits_of_app(app_label)
    if len(limits) <= 1:
        return _lives_on(next(iter(limits), None), db)
    if silo_aliases().get(db, (None, None))[0] is SiloMode.MONOLITH:
        return True
    if db not in silo_aliases():
        return False
    raise SiloConfigurationError(_undecided(app_label, model_name, limits, hints))


def _lives_on(limit: SiloLimit | None, db: str) -> bool | None:
    silo = silo_aliases().get(db)
    if limit is None:
        # Apps without limits stay off the silos' own aliases, except where that is `default`.
        return False if silo is not None and db != DEFAULT_DB_ALIAS else None
    if silo is None:
        return False
    return limit is EVERY_SILO or silo[0] in (SiloMode.MONOLITH, limit)


def _hinted(hint: object, app_label: str) -> SiloLimit:
    if hint is EVERY_SILO:
        return EVERY_SILO
    if hint in (SiloMode.CONTROL, SiloMode.CELL):
        return SiloMode(str(hint))
    msg = (
        f"The hint silo={hint!r} of an operation in a migration of {app_label!r} is not a valid "
        "limit. Use SiloMode.CONTROL, SiloMode.CELL or silos.limits.EVERY_SILO."
    )
    raise SiloConfigurationError(msg)


def _limit_of_model(
    app_label: str, model_name: str, historical: Any
) -> tuple[bool, SiloLimit | None]:
    """Return whether the model is known, and its limit."""
    try:
        return True, silo_of(apps.get_model(app_label, model_name))
    except LookupError:
        pass
    if app_label in CONTRIB_LIMITS:
        return True, CONTRIB_LIMITS[app_label]
    if historical is not None and (inherited := silo_of(historical)) is not None:
        return True, inherited
    limit = _removed_models(app_label).get(model_name.lower())
    return limit is not None, limit


def _removed_models(app_label: str) -> dict[str, SiloLimit]:
    try:
        config = apps.get_app_config(app_label)
    except LookupError:
        return {}
    declared: Mapping[str, SiloLimit] = getattr(config, "removed_models", {})
    return {name.lower(): limit for name, limit in declared.items()}


def _limits_of_app(app_label: str) -> set[SiloLimit]:
    if app_label in CONTRIB_LIMITS:
        return {CONTRIB_LIMITS[app_label]}
    try:
        models = apps.get_app_config(app_label).get_models()
    except LookupError:
        return set()
    found = {silo_of(model) for model in models}
    return {limit for limit in found if limit is not None}


def _undecided(
    app_label: str, model_name: str | None, limits: set[SiloLimit], hints: Mapping[str, Any]
) -> str:
    places = " and ".join(sorted(limit_name(limit) for limit in limits))
    if model_name is not None:
        return (
            f"Model {model_name!r}, in a migration of {app_label!r}, is no longer in the code, "
            f"and the app has models of {places}. Declare where it lived: "
            f'removed_models = {{"{model_name}": SiloMode.…}} on its AppConfig.'
        )
    shown = f" (hints: {dict(hints)!r})" if hints else ""
    return (
        f"An operation without a model (RunPython, RunSQL, an extension){shown} in a migration of "
        f"{app_label!r} could run in several silos, because the app has models of {places}. "
        'Give the operation hints={"silo": SiloMode.CONTROL}, SiloMode.CELL or EVERY_SILO.'
    )
