"""System checks of the silos' models and settings.

E001 model without a limit · E002 alias missing · E003 router not first · E004 duplicate cell ·
E005 foreign key across silos · I006 MONOLITH with several aliases · E007 invalid settings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, register
from django.db.models import ForeignKey, ManyToManyField, Model
from django.utils.module_loading import import_string

from .directory import Directory, directory
from .errors import DuplicateCellError, SiloConfigurationError
from .limits import CONTRIB_LIMITS, EVERY_SILO, limit_name, silo_of
from .router import SiloRouter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.apps import AppConfig

_ROUTER = "silos.router.SiloRouter"
_NO_ENGINE = "django.db.backends.dummy"


def register_all() -> None:
    """Register the checks; safe to call twice."""
    register(check_model_limits, Tags.models)
    register(check_relations, Tags.models)
    register(check_settings, "silos")
    register(check_router, "silos")


def check_model_limits(
    app_configs: Sequence[AppConfig] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """silos.E001: every model of an app with siloed models has a limit."""
    found: list[CheckMessage] = []
    for config in _apps(app_configs):
        models = [*config.get_models()]
        if config.label in CONTRIB_LIMITS or not any(map(silo_of, models)):
            continue
        found += [
            Error(
                f"{model._meta.label} does not say in which silo it lives, but other models of "
                f"{config.label!r} do.",
                hint="Decorate it with @control_silo_model, @cell_silo_model or @all_silo_model.",
                obj=model,
                id="silos.E001",
            )
            for model in models
            if silo_of(model) is None
        ]
    return found


def check_relations(
    app_configs: Sequence[AppConfig] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """silos.E005: a foreign key must not point into another silo."""
    return [
        message
        for config in _apps(app_configs)
        for model in config.get_models()
        for message in _crossing_relations(model)
    ]


def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """silos.E002, E004, I006, E007: the cells and aliases in HYBRIDCLOUD."""
    try:
        known = directory()
    except DuplicateCellError as exc:
        return [Error(str(exc), id="silos.E004")]
    except SiloConfigurationError as exc:
        return [Error(str(exc), id="silos.E007")]
    found = [*_missing_aliases(known)]
    if known.mode == "MONOLITH" and len(known.aliases) > 1:
        found.append(
            Info(
                f"SILO_MODE is MONOLITH with several aliases ({', '.join(sorted(known.aliases))}): "
                "each query goes to the database of the current silo.",
                hint="This is meant for tests and laptops, where you can silence this check with "
                "SILENCED_SYSTEM_CHECKS. In a deployed silo, set SILO_MODE and CELL.",
                id="silos.I006",
            )
        )
    return found


def check_router(**_kwargs: Any) -> list[CheckMessage]:
    """silos.E003: a router before SiloRouter could send rows to another silo."""
    routers = list(settings.DATABASE_ROUTERS)
    if routers:
        first = import_string(routers[0]) if isinstance(routers[0], str) else type(routers[0])
        if isinstance(first, type) and issubclass(first, SiloRouter):
            return []
    return [
        Error(
            f"SiloRouter is not the first router in DATABASE_ROUTERS, which is {routers!r}.",
            hint=f'Set DATABASE_ROUTERS = ["{_ROUTER}", ...].',
            id="silos.E003",
        )
    ]


def _apps(asked_for: Sequence[AppConfig] | None) -> Iterable[AppConfig]:
    return apps.get_app_configs() if asked_for is None else asked_for


def _missing_aliases(known: Directory) -> Iterator[CheckMessage]:
    wanted = {f"cell {name!r}": alias for name, alias in known.cell_aliases.items()}
    if known.mode == "CELL":
        # Other silos are other processes: only this cell's own alias has to exist.
        wanted = {name: alias for name, alias in wanted.items() if name == f"cell {known.cell!r}"}
    if known.mode == "CONTROL":
        wanted = {}
    if known.mode != "CELL":
        wanted["the control silo"] = known.control_alias
    for silo, alias in wanted.items():
        # Django requires a `default` alias but lets it be empty; its engine is then the dummy one.
        engine = settings.DATABASES.get(alias, {}).get("ENGINE", _NO_ENGINE)
        if engine == _NO_ENGINE:
            yield Error(
                f"The alias {alias!r} of {silo} is missing from DATABASES.",
                hint='Add it, or name another alias in HYBRIDCLOUD["DATABASES"].',
                id="silos.E002",
            )


def _crossing_relations(model: type[Model]) -> Iterator[CheckMessage]:
    here = silo_of(model)
    if here is None or model._meta.proxy:
        return
    for field in (*model._meta.local_fields, *model._meta.local_many_to_many):
        if not isinstance(field, (ForeignKey, ManyToManyField)):
            continue
        there = silo_of(field.related_model)
        if there is None or there is here or there is EVERY_SILO:
            continue
        yield Error(
            f"{field} points from {limit_name(here)} into {limit_name(there)}, to "
            f"{field.related_model._meta.label}.",
            hint="Use HybridCloudForeignKey, a replica of the target, or a plain id column.",
            obj=field,
            id="silos.E005",
        )
