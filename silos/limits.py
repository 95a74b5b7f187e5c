"""Decorators that limit models and functions to a silo.

The limit of a model is only a mark. The router reads it when a query is about to run, so lazy
querysets, related managers and forms all go through the same check, at call time. The limit of a
function is checked at each call, in production too. In a MONOLITH everything is available.
"""

from __future__ import annotations

import enum
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

from django.apps import apps
from django.db.models import Model

from .errors import AvailabilityError, SiloConfigurationError
from .mode import SiloMode, get_current_silo

if TYPE_CHECKING:
    from collections.abc import Callable


class EverySilo(enum.Enum):
    """The type of `EVERY_SILO`: the model has a table in every silo."""

    EVERY_SILO = "every silo"


EVERY_SILO: Final = EverySilo.EVERY_SILO

#: Where a model lives: SiloMode.CONTROL, SiloMode.CELL, or a copy of the table in every silo.
SiloLimit = SiloMode | EverySilo

#: Django's own apps, whose models cannot carry a decorator.
CONTRIB_LIMITS: Final[dict[str, SiloLimit]] = {
    "auth": SiloMode.CONTROL,
    "admin": SiloMode.CONTROL,
    "sessions": SiloMode.CONTROL,
    "contenttypes": EVERY_SILO,
}

_MARK = "_silo_limit"


def control_silo_model[M: type[Model]](model: M) -> M:
    """Declare that a model lives in the control silo."""
    return _limit(model, SiloMode.CONTROL)


def cell_silo_model[M: type[Model]](model: M) -> M:
    """Declare that a model lives in the cells."""
    return _limit(model, SiloMode.CELL)


def all_silo_model[M: type[Model]](model: M) -> M:
    """Declare that a model has a table of its own in every silo."""
    return _limit(model, EVERY_SILO)


def silo_of(model: type[Model]) -> SiloLimit | None:
    """Return where a model lives; None for a model without a limit.

    Proxies, children in multi-table inheritance and subclasses of a decorated abstract model share
    its limit. The table of a many-to-many field follows the model that declares the field. A
    historical model (in a migration) follows the real one.
    """
    inherited = _inherited_limit(model)
    if inherited is not None:
        return inherited
    owner = model._meta.auto_created
    if isinstance(owner, type) and issubclass(owner, Model):
        return silo_of(owner)
    return _limit_of_real_model(model)


def limit_name(limit: SiloLimit | None) -> str:
    """Return the name of a limit as error messages write it."""
    if limit is SiloMode.CONTROL:
        return "the control silo"
    if limit is SiloMode.CELL:
        return "the cells"
    return "every silo" if limit is EVERY_SILO else "no silo in particular"


def control_silo_function[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Limit a function to the control silo.

    A call from anywhere else raises an `AvailabilityError`.
    """
    return _limit_function(function, SiloMode.CONTROL)


def cell_silo_function[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Limit a function to the cells.

    A call from anywhere else raises an `AvailabilityError`.
    """
    return _limit_function(function, SiloMode.CELL)


def advice_for(limit: SiloLimit | None) -> str:
    """Return the sentence that says how to reach what has this limit."""
    enter = "cell=…" if limit is SiloMode.CELL else ""
    mode = "SiloMode.CELL, " if limit is SiloMode.CELL else "SiloMode.CONTROL"
    return (
        f"Call an RPC service of that silo, or, if one process is all silos, "
        f"enter it with assume_silo({mode}{enter})."
    )


def _limit[M: type[Model]](model: M, limit: SiloLimit) -> M:
    if not (isinstance(model, type) and issubclass(model, Model)):
        msg = f"{model!r} is not a model class. Use this decorator only on models."
        raise TypeError(msg)
    inherited = _inherited_limit(model)
    if inherited is not None and inherited is not limit:
        msg = (
            f"{model._meta.label} inherits a limit to {limit_name(inherited)}, but is declared for "
            f"{limit_name(limit)}. Use the same limit for both: parent and child share tables."
        )
        raise SiloConfigurationError(msg)
    setattr(model, _MARK, limit)
    return model


def _inherited_limit(model: type[Model]) -> SiloLimit | None:
    for base in model.__mro__:
        limit = base.__dict__.get(_MARK)
        if limit is not None:
            return cast("SiloLimit", limit)
        meta = getattr(base, "_meta", None)
        # Abstract contrib models (AbstractUser) impose no limit: projects subclass them anywhere.
        if meta is not None and not meta.abstract and meta.app_label in CONTRIB_LIMITS:
            return CONTRIB_LIMITS[meta.app_label]
    return None


def _limit_of_real_model(model: type[Model]) -> SiloLimit | None:
    meta = model._meta
    if meta.apps is apps or not apps.models_ready:
        return None
    try:
        real = apps.get_model(meta.app_label, meta.model_name)
    except LookupError:
        return None
    return silo_of(real) if real is not model else None


def _limit_function[**P, R](function: Callable[P, R], limit: SiloMode) -> Callable[P, R]:
    if not callable(function):
        msg = f"{function!r} is not callable. Use this decorator only on functions."
        raise TypeError(msg)
    name = f"{function.__module__}.{function.__qualname__}()"

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            _require(name, limit)
            return await function(*args, **kwargs)

        return cast("Callable[P, R]", limited_async)

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        _require(name, limit)
        return function(*args, **kwargs)

    return limited


def _require(name: str, limit: SiloMode) -> None:
    current = get_current_silo()
    if current.mode in (SiloMode.MONOLITH, limit):
        return
    msg = (
        f"{name} runs only in {limit_name(limit)}, but was called from {current}. "
        f"{advice_for(limit)}"
    )
    raise AvailabilityError(msg, touched=name, current=str(current), lives_in=limit_name(limit))
