"""Finds the cell that a call goes to from its arguments; without it cell services would have no address.

A user's own rule subclasses `CellResolution`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from silos.cells import find_cell_for_org, get_cell

if TYPE_CHECKING:
    from collections.abc import Mapping


class CellResolution(ABC):
    """A rule that reads the target cell off a call's arguments.

    Attributes:
        parameter: the parameter that the rule reads; a method without it is refused. None: any.
    """

    def __init__(self, parameter: str | None = None) -> None:
        self.parameter = parameter

    @property
    def _read(self) -> str:
        return self.parameter or ""

    @abstractmethod
    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Return the name of the cell; called once per call, in the caller's silo.

        Args:
            arguments: all arguments by parameter name, defaults included.

        Raises:
            CellMappingNotFoundError: no cell is known for what the arguments name.
            UnknownCellError: there is no cell of that name.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameter!r})"


class ByCellName(CellResolution):
    """The cell is named by a parameter."""

    def __init__(self, parameter: str = "cell_name") -> None:
        super().__init__(parameter)

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Return the named cell, if there is one."""
        return get_cell(arguments[self._read]).name


class ByOrganizationId(CellResolution):
    """The cell is the one of the organization whose id is a parameter."""

    def __init__(self, parameter: str = "organization_id") -> None:
        super().__init__(parameter)

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Ask the cell resolver of the settings."""
        return find_cell_for_org(arguments[self._read])


class ByOrganizationIdAttribute(CellResolution):
    """The cell is the one of the organization whose id is an attribute of a parameter."""

    def __init__(self, parameter: str, attribute: str = "organization_id") -> None:
        super().__init__(parameter)
        self.attribute = attribute

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Ask the cell resolver of the settings; the attribute may be a dotted path."""
        return find_cell_for_org(attrgetter(self.attribute)(arguments[self._read]))
