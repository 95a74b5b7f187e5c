"""The directory: the silos in `settings.HYBRIDCLOUD`, frozen.

`silos` reads its own keys (SILO_MODE, CELL, CELLS, CONTROL_ADDRESS, DATABASES, CELL_RESOLVER) and
leaves the other keys to `hybridcloud.conf`, which it must not import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS

from .errors import DuplicateCellError, SiloConfigurationError, near_matches

#: The name of the only cell if no cells are configured.
MONOLITH_CELL = "monolith"

_MODES = ("MONOLITH", "CONTROL", "CELL")


@dataclass(frozen=True, slots=True)
class Cell:
    """A named cell silo.

    Attributes:
        name: The cell's name in settings, messages and tasks.
        address: Base URL of its RPC endpoint, for other silos.
    """

    name: str
    address: str = ""


# eq=False: directories compare by identity, so that caches can be keyed by one load of the settings.
@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """The silos of this installation, and which of them this process is.

    Attributes:
        mode: Name of the process's silo mode.
        cell: The cell that this process is (CELL) or runs in by default (MONOLITH).
        cells: Every cell, in the order of the settings.
        control_address: Base URL of the control silo's RPC endpoint.
        control_alias: Database alias of the control silo.
        cell_aliases: Database alias of each cell, by name.
        resolver: Class path of the cell resolver, if there is one.
    """

    mode: str
    cell: str | None
    cells: tuple[Cell, ...]
    control_address: str
    control_alias: str
    cell_aliases: Mapping[str, str]
    resolver: str | None

    @property
    def aliases(self) -> frozenset[str]:
        """The database aliases of all silos, each once."""
        return frozenset((self.control_alias, *self.cell_aliases.values()))


@cache
def directory() -> Directory:
    """Return the directory, read from the settings at first use.

    Raises:
        SiloConfigurationError: The settings are invalid; the message says which key and why.
    """
    return _load(getattr(settings, "HYBRIDCLOUD", {}))


def _reset(*, setting: str, **_kwargs: Any) -> None:
    if setting in {"HYBRIDCLOUD", "DATABASES"}:
        directory.cache_clear()


setting_changed.connect(_reset, dispatch_uid="silos.directory")


def _load(raw: Mapping[str, Any]) -> Directory:
    mode = str(raw.get("SILO_MODE") or "MONOLITH").upper()
    if mode not in _MODES:
        msg = f'HYBRIDCLOUD["SILO_MODE"] is {mode!r}. {near_matches(mode, _MODES)}'
        raise SiloConfigurationError(msg)
    cells = _load_cells(raw.get("CELLS") or ())
    names = [cell.name for cell in cells]
    control_alias, cell_aliases = _load_aliases(raw.get("DATABASES") or {}, names)
    own = raw.get("CELL") or None
    if own is not None and own not in names:
        msg = f'HYBRIDCLOUD["CELL"] names the unknown cell {own!r}. {near_matches(own, names)}'
        raise SiloConfigurationError(msg)
    if mode == "CONTROL":
        own = None
    elif own is None:
        own = _default_cell(mode, names, one_database={control_alias} == {*cell_aliases.values()})
    return Directory(
        mode=mode,
        cell=own,
        cells=cells,
        control_address=str(raw.get("CONTROL_ADDRESS") or ""),
        control_alias=control_alias,
        cell_aliases=MappingProxyType(cell_aliases),
        resolver=raw.get("CELL_RESOLVER") or None,
    )


def _default_cell(mode: str, names: list[str], *, one_database: bool) -> str | None:
    if mode == "MONOLITH":
        # With several databases, a guess could put one tenant's rows into another tenant's cell.
        return names[0] if one_database else None
    if len(names) == 1:
        return names[0]
    msg = (
        'HYBRIDCLOUD["CELL"] is missing, with SILO_MODE "CELL" and several cells. '
        f"Set it to the name of this process's cell. {near_matches('', names)}"
    )
    raise SiloConfigurationError(msg)


def _load_cells(raw: Sequence[Mapping[str, Any]]) -> tuple[Cell, ...]:
    cells = tuple(_load_cell(entry) for entry in raw)
    for what in ("name", "address"):
        seen: dict[str, Cell] = {}
        for cell in cells:
            value = getattr(cell, what)
            if value and value in seen:
                others = f"{seen[value].name!r} and {cell.name!r}" if what == "address" else "two"
                msg = (
                    f'Duplicate cell {what} {value!r} in HYBRIDCLOUD["CELLS"] ({others} cells '
                    f"have it). Give each cell its own {what}."
                )
                raise DuplicateCellError(msg)
            seen[value] = cell
    return cells or (Cell(MONOLITH_CELL),)


def _load_cell(entry: Mapping[str, Any]) -> Cell:
    known = ("name", "address")
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        msg = (
            f'HYBRIDCLOUD["CELLS"] has the entry {entry!r} without a name. Write each cell as '
            '{"name": "us", "address": "http://…"}.'
        )
        raise SiloConfigurationError(msg)
    for key in entry:
        if key not in known:
            msg = (
                f'HYBRIDCLOUD["CELLS"] has the unknown key {key!r} in cell {entry["name"]!r}. '
                f"{near_matches(str(key), known)}"
            )
            raise SiloConfigurationError(msg)
    if not entry["name"]:
        msg = 'HYBRIDCLOUD["CELLS"] has a cell with an empty name. Give it a name.'
        raise SiloConfigurationError(msg)
    return Cell(name=entry["name"], address=str(entry.get("address") or ""))


def _load_aliases(raw: Mapping[str, Any], names: list[str]) -> tuple[str, dict[str, str]]:
    for key in raw:
        if key not in {"control", "cells"}:
            msg = (
                f'HYBRIDCLOUD["DATABASES"] has the unknown key {key!r}. '
                f"{near_matches(str(key), ('control', 'cells'))}"
            )
            raise SiloConfigurationError(msg)
    cells = raw.get("cells") or {}
    if not isinstance(cells, Mapping):
        msg = f'HYBRIDCLOUD["DATABASES"]["cells"] is {cells!r}. Map each cell\'s name to its alias.'
        raise SiloConfigurationError(msg)
    for name in cells:
        if name not in names:
            msg = (
                f'HYBRIDCLOUD["DATABASES"]["cells"] names the unknown cell {name!r}. '
                f"{near_matches(name, names)}"
            )
            raise SiloConfigurationError(msg)
    aliases = {name: str(cells.get(name, DEFAULT_DB_ALIAS)) for name in names}
    return str(raw.get("control", DEFAULT_DB_ALIAS)), aliases
