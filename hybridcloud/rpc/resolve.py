"""Rules that find a call's target cell from its arguments.

A project's own rule subclasses `CellResolution`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from silos.cells import find_cell_for_org, get_cell

if TYPE_CHECKING:
    from collections.abc import Mapping


class CellResolution(ABC):
    """A rule that finds the target cell from a call's arguments.

    Attributes:
        parameter: the parameter that the rule reads; a method that lacks it is refused. None: the
            rule may read any.
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
            arguments: all arguments by parameter name, including defaults.

        Raises:
            CellMappingNotFoundError: no cell is known for these arguments.
            UnknownCellError: there is no cell with this name.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameter!r})"


class ByCellName(CellResolution):
    """A parameter is the name of the cell."""

    def __init__(self, parameter: str = "cell_name") -> None:
        super().__init__(parameter)

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Return the parameter's value, if there is a cell with this name."""
        return get_cell(arguments[self._read]).name


class ByOrganizationId(CellResolution):
    """A parameter is the id of an organization; its cell is the target."""

    def __init__(self, parameter: str = "organization_id") -> None:
        super().__init__(parameter)

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Ask the cell resolver that is named in the settings."""
        return find_cell_for_org(arguments[self._read])


class ByOrganizationIdAttribute(CellResolution):
    """A parameter has an organization's id; that one's cell is the target.

    Attributes:
        attribute: name of the parameter's attribute, or a dotted path to it.
    """

    def __init__(self, parameter: str, attribute: str = "organization_id") -> None:
        super().__init__(parameter)
        self.attribute = attribute

    def find_cell(self, arguments: Mapping[str, Any]) -> str:
        """Ask the cell resolver that is named in the settings."""
        return find_cell_for_org(attrgetter(self.attribute)(arguments[self._read]))
