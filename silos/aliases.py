"""The database alias of each silo and each model.

The router, the guard and the engine all ask this module, so they always agree. In a process with
one database, everything is on its alias. In a MONOLITH with an alias per silo (a test suite, a
laptop), the current silo and cell decide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS

from .cells import get_cell
from .directory import Directory, directory
from .errors import AvailabilityError
from .limits import EVERY_SILO, SiloLimit, advice_for, limit_name, silo_of
from .mode import SiloMode, get_assumed_silo, get_current_silo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import Model

_Silo = tuple[SiloMode, str | None]


def alias_of(mode: SiloMode, cell: str | None = None) -> str:
    """Return the database alias of a silo.

    Args:
        mode: The silo; a MONOLITH without a cell is on the control silo's alias.
        cell: The cell; if omitted, CELL uses the current one.

    Raises:
        UnknownCellError: There is no such cell.
        AvailabilityError: No cell was given, none is current, and the cells' aliases differ.
    """
    known = directory()
    if mode is SiloMode.CONTROL or (mode is SiloMode.MONOLITH and cell is None):
        return known.control_alias
    if cell is not None:
        return known.cell_aliases[get_cell(cell).name]
    return _current_cell_alias("A cell's database")


def current_alias() -> str:
    """Return the alias of the current silo.

    In a MONOLITH this is the current cell's alias, or control's if no cell is current.
    """
    current = get_current_silo()
    return alias_of(current.mode, current.cell)


def alias_for_model(model: type[Model]) -> str:
    """Return the alias of a model's rows, as seen from the current silo.

    A model without a limit is on `default`.

    Raises:
        AvailabilityError: The model does not live in the current silo, or it lives in the cells,
            no cell is current, and the cells' aliases differ.
    """
    limit = silo_of(model)
    return DEFAULT_DB_ALIAS if limit is None else alias_for_limit(limit, model._meta.label)


def alias_for_limit(limit: SiloLimit, touched: str) -> str:
    """Return the alias for a limit; `touched` names its subject in errors."""
    current = get_current_silo()
    if limit is EVERY_SILO:
        if current.mode is not SiloMode.MONOLITH:
            return alias_of(current.mode, current.cell)
        return directory().control_alias
    if current.mode not in (SiloMode.MONOLITH, limit):
        msg = (
            f"{touched} lives in {limit_name(limit)}, but was accessed from {current}. "
            f"{advice_for(limit)}"
        )
        lives_in = limit_name(limit)
        raise AvailabilityError(msg, touched=touched, current=str(current), lives_in=lives_in)
    if limit is SiloMode.CELL:
        return _current_cell_alias(touched)
    return directory().control_alias


def silo_aliases() -> Mapping[str, tuple[SiloMode, str | None]]:
    """Return the silo of each alias of this process.

    The value is (mode, cell). An alias shared by control and cells is `(MONOLITH, None)`; one that
    several cells share is `(CELL, None)`. A CONTROL or CELL process owns its own alias, even if
    other silos are mapped to it, and sees only those other aliases that are in its DATABASES.
    """
    return _silo_aliases(directory())


@lru_cache(maxsize=4)
def _silo_aliases(known: Directory) -> Mapping[str, _Silo]:
    found: dict[str, _Silo] = {known.control_alias: (SiloMode.CONTROL, None)}
    for name, alias in known.cell_aliases.items():
        shared = found.get(alias)
        if shared is None:
            found[alias] = (SiloMode.CELL, name)
        else:
            both = shared[0] is not SiloMode.CELL
            found[alias] = (SiloMode.MONOLITH if both else SiloMode.CELL, None)
    mode = SiloMode(known.mode)
    if mode is SiloMode.MONOLITH:
        return found
    own = known.control_alias if mode is SiloMode.CONTROL else known.cell_aliases[known.cell or ""]
    present = {alias: silo for alias, silo in found.items() if alias in settings.DATABASES}
    return {**present, own: (mode, known.cell)}


def _current_cell_alias(touched: str) -> str:
    known = directory()
    current = get_current_silo()
    if current.cell is not None:
        return known.cell_aliases[current.cell]
    aliases = {*known.cell_aliases.values()}
    if len(aliases) == 1:
        return aliases.pop()
    msg = (
        f"{touched} lives in the cells, but was accessed from {current} with no current cell, so "
        f"it could be on any of {', '.join(sorted(aliases))}. Enter a cell with "
        "assume_silo(SiloMode.MONOLITH, cell=…) or assume_silo(SiloMode.CELL, cell=…)."
    )
    raise AvailabilityError(msg, touched=touched, current=str(current), lives_in="the cells")


def assumed_alias() -> str | None:
    """Return the alias of the silo entered with `assume_silo`.

    None if no silo was entered, or a MONOLITH.
    """
    assumed = get_assumed_silo()
    if assumed is None or assumed.mode is SiloMode.MONOLITH:
        return None
    return alias_of(assumed.mode, assumed.cell)
