"""The cells, and which of them hold an organization or a user.

Only the project knows where organizations and users live: `HYBRIDCLOUD["CELL_RESOLVER"]` names a
class of the project with the two methods of `CellResolver`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from django.utils.module_loading import import_string

from .directory import MONOLITH_CELL, Cell, directory
from .errors import (
    CellMappingNotFoundError,
    SiloConfigurationError,
    UnknownCellError,
    near_matches,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "MONOLITH_CELL",
    "Cell",
    "CellResolver",
    "all_cells",
    "control_address",
    "find_cell_for_org",
    "find_cells_for_orgs",
    "find_cells_for_user",
    "get_cell",
]


class CellResolver(Protocol):
    """The interface of the class named in `HYBRIDCLOUD["CELL_RESOLVER"]`.

    The class is instantiated without arguments.
    """

    def cells_of_organizations(self, ids: Iterable[int], /) -> Mapping[int, str]:
        """Return the cell name of each organization; omit unknown ones."""
        ...

    def cells_of_user(self, user_id: int, /) -> set[str]:
        """Return the names of the cells in which the user exists."""
        ...


class _OnlyCell:
    """The resolver of an installation with one cell."""

    def __init__(self, name: str) -> None:
        self._name = name

    def cells_of_organizations(self, ids: Iterable[int], /) -> Mapping[int, str]:
        return dict.fromkeys(ids, self._name)

    def cells_of_user(self, _user_id: int, /) -> set[str]:
        return {self._name}


def all_cells() -> tuple[Cell, ...]:
    """Return every cell, in the order of the settings.

    If the settings list none, there is one cell named "monolith".
    """
    return directory().cells


def control_address() -> str:
    """Return the base URL of the control silo's RPC endpoint, or ""."""
    return directory().control_address


def get_cell(name: str) -> Cell:
    """Return the cell with this name.

    Raises:
        UnknownCellError: There is no such cell; the message lists near matches.
    """
    for cell in directory().cells:
        if cell.name == name:
            return cell
    known = [cell.name for cell in directory().cells]
    msg = f'Unknown cell {name!r}: not in HYBRIDCLOUD["CELLS"]. {near_matches(name, known)}'
    raise UnknownCellError(msg)


def find_cells_for_orgs(ids: Iterable[int]) -> set[str]:
    """Return the names of the cells in which the organizations live.

    Raises:
        CellMappingNotFoundError: The resolver does not know one of them.
        UnknownCellError: The resolver named a cell that is not in the directory.
        SiloConfigurationError: There are several cells, but no resolver is set.
    """
    wanted = list(ids)
    if not wanted:
        return set()
    found = _resolver().cells_of_organizations(wanted)
    missing = [org_id for org_id in wanted if org_id not in found]
    if missing:
        shown = ", ".join(str(org_id) for org_id in missing[:10])
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        msg = (
            f"No cell is known for organization {shown}{more}, according to {_resolver_name()}. "
            "Write its mapping before you look up its cell."
        )
        raise CellMappingNotFoundError(msg)
    return {get_cell(found[org_id]).name for org_id in wanted}


def find_cell_for_org(org_id: int) -> str:
    """Return the name of the cell in which the organization lives.

    Raises:
        CellMappingNotFoundError: The resolver does not know it.
    """
    (name,) = find_cells_for_orgs([org_id])
    return name


def find_cells_for_user(user_id: int) -> set[str]:
    """Return the names of the cells in which the user exists.

    The set is empty for a user without organizations.

    Raises:
        UnknownCellError: The resolver named a cell that is not in the directory.
        SiloConfigurationError: There are several cells, but no resolver is set.
    """
    return {get_cell(name).name for name in _resolver().cells_of_user(user_id)}


def _resolver() -> CellResolver:
    current = directory()
    if current.resolver is not None:
        return _make_resolver(current.resolver)
    if len(current.cells) == 1:
        return _OnlyCell(current.cells[0].name)
    msg = (
        f'HYBRIDCLOUD["CELL_RESOLVER"] is not set, but there are {len(current.cells)} cells. Set '
        "it to the path of a class with cells_of_organizations(ids) and cells_of_user(id)."
    )
    raise SiloConfigurationError(msg)


def _resolver_name() -> str:
    return directory().resolver or "the only cell"


@cache
def _make_resolver(path: str) -> CellResolver:
    try:
        made = import_string(path)()
    except ImportError as exc:
        msg = f'HYBRIDCLOUD["CELL_RESOLVER"] = {path!r} cannot be imported: {exc}'
        raise SiloConfigurationError(msg) from exc
    for method in ("cells_of_organizations", "cells_of_user"):
        if not callable(getattr(made, method, None)):
            msg = f'HYBRIDCLOUD["CELL_RESOLVER"] = {path!r} has no method {method}. Add it.'
            raise SiloConfigurationError(msg)
    return cast("CellResolver", made)
