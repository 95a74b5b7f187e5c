"""Determines up to which version a model is to be replicated.

The code says which version exists, an option says how far to go: a version is
walked once both have reached it, so a deployment alone starts no backfill.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.db import models

from hybridcloud import options
from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError
from hybridcloud.logs import log_limited
from hybridcloud.outbox.write.registration import producing_models
from silos import SiloMode, assume_silo, get_current_silo
from silos.cells import all_cells, get_cell
from silos.errors import UnknownCellError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hybridcloud.outbox.write.mixins import ProducingModel

_LOG = logging.getLogger("hybridcloud.backfill")
PAUSED: Final = "hybridcloud.backfill.paused"
PER_MINUTE: Final = "hybridcloud.backfill.per_minute"
MAX_LAG: Final = "hybridcloud.backfill.max_lag"

options.register(
    PAUSED, bool, False, doc="Stops every backfill of this silo; each keeps its position."
)
options.register(
    PER_MINUTE,
    int,
    None,
    doc="Messages that backfills write per minute at most; unset: the setting OUTBOX_BACKFILLS_PER_MINUTE.",
)
options.register(
    MAX_LAG,
    float,
    60.0,
    doc="Seconds: backfills pause while the oldest message that could be handled has waited longer.",
)


def _installed_models() -> list[type[ProducingModel]]:
    """Return the producing models of installed apps.

    A model of another app registry has no table here.
    """
    return [model for model in producing_models() if model._meta.apps is apps]


def register_options() -> None:
    """Register the options of every producing model, once the apps are ready."""
    for model in _installed_models():
        _register(model)


def find_replication_version(
    model: type[ProducingModel],
    force_synchronous: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
) -> int:
    """Return the version up to which a model is to be replicated.

    Args:
        model: the model.
        force_synchronous: go by the code alone, whatever the option says.

    Returns:
        The lower of the option and the code's ``replication_version``.
    """
    if force_synchronous:
        return model.replication_version
    gate: int = _option(model, "replication_version")
    return min(gate, model.replication_version)


def is_paused(model: type[ProducingModel]) -> bool:
    """Return whether an option stops the model's backfill, or all of its silo."""
    with in_silo_of(model):
        return bool(options.get(PAUSED)) or bool(_option(model, "backfill.paused"))


def find_target_cells(model: type[ProducingModel]) -> frozenset[str] | None:
    """Return the cells to which a control model's backfill is limited.

    None: it is not limited.
    """
    if model.silo_mode is not SiloMode.CONTROL:
        return None
    given = _option(model, "backfill.target_cells")
    known = {cell.name for cell in all_cells()}
    good = frozenset(name for name in given if isinstance(name, str) and name in known)
    if len(good) < len(given):
        text = "Target cells of the backfill of %s that do not exist are left out: %s"
        log_limited(_LOG, logging.ERROR, model, text, model._meta.label, given)
    # Also where none is left: a list with a mistake never means all cells.
    return good if given else None


def rate_per_minute() -> int:
    """Return how many messages per minute this silo's backfills may write."""
    given = options.get(PER_MINUTE)
    return settings().outbox_backfills_per_minute if given is None else max(0, given)


def models_of(mode: SiloMode) -> list[type[ProducingModel]]:
    """Return the producing models of control or of cells; MONOLITH: all."""
    return [
        model
        for model in _installed_models()
        if mode is SiloMode.MONOLITH or model.silo_mode is mode
    ]


def find_model(name: str) -> type[ProducingModel]:
    """Return the producing model with a label or a table name.

    Raises:
        LookupError: there is none; the message names those that exist.
    """
    for model in _installed_models():
        if name.lower() in (model._meta.label_lower, model._meta.db_table.lower()):
            return model
    known = ", ".join(sorted(model._meta.label for model in _installed_models()))
    raise LookupError(
        f"No producing model or table {name!r} in this process. Known models: {known}."
    )


def require_integer_ids(model: type[ProducingModel]) -> None:
    """Refuse a model that cannot be walked by id.

    Raises:
        ConfigurationError: its primary key is not an integer column.
    """
    key: Any = model._meta.pk
    while isinstance(key, models.ForeignKey):
        key = key.target_field
    if not isinstance(key, models.IntegerField):
        raise ConfigurationError(
            f"No integer primary key: {model._meta.label}.{key.name} is a {type(key).__name__}, but a "
            f"backfill walks a table by its ids. Save its rows in a script of your own, or give the "
            f"model an integer primary key."
        )


def in_silo_of(model: type[ProducingModel]) -> AbstractContextManager[object]:
    """Enter the model's silo if the process is a monolith.

    Otherwise the current silo is the model's, or the process does not have it.
    """
    current = get_current_silo()
    if current.mode is not SiloMode.MONOLITH:
        return nullcontext()
    return assume_silo(model.silo_mode)


def option_key(model: type[models.Model], name: str) -> str:
    """Return the key of a model's option.

    For example ``outbox_replication.acme_user.backfill.paused``.
    """
    return f"outbox_replication.{model._meta.db_table}.{name}"


def _option(model: type[ProducingModel], name: str) -> Any:
    with in_silo_of(model):
        try:
            return options.get(option_key(model, name))
        except LookupError:
            # A model that was declared after the apps were ready.
            _register(model)
            return options.get(option_key(model, name))


def _check_cells(names: list[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not the name of a cell")  # noqa: TRY004 - one kind
        try:
            get_cell(name)
        except UnknownCellError as exc:
            raise ValueError(str(exc).rstrip(".")) from exc


def _register(model: type[ProducingModel]) -> None:
    label = model._meta.label
    options.register(
        option_key(model, "replication_version"),
        int,
        0,
        doc=f"Version up to which {label} is replicated, at most the code's; 0: none.",
    )
    options.register(
        option_key(model, "backfill.paused"),
        bool,
        False,
        doc=f"Stops the backfill of {label}; it keeps its position.",
    )
    if model.silo_mode is SiloMode.CONTROL:
        options.register(
            option_key(model, "backfill.target_cells"),
            list,
            [],
            doc=f"Cells to which the backfill of {label} is limited; empty: all that a row goes to.",
            validate=_check_cells,
        )
