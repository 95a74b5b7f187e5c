"""The cells that triggers of control models write messages for.

A trigger cannot ask the resolver: `migrate` writes the directory's cells into its body, or it
looks up an object's cells in a mapping table of control.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist

from silos import SiloMode
from silos.cells import all_cells
from silos.limits import EVERY_SILO, silo_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.db.models import Model


class CellMapping(NamedTuple):
    """A table of control that maps an object to its cells.

    Attributes:
        model: the table's model, or its label.
        match: the column that the producing model and the mapping share, such as ``user_id``.
        cell: the mapping's column with the cell's name.
        on: the mapping's name of the shared column, if it differs.
    """

    model: str | type[Model]
    match: str
    cell: str = "cell_name"
    on: str | None = None

    def resolved(self) -> type[Model]:
        """Return the mapping's model."""
        return apps.get_model(self.model) if isinstance(self.model, str) else self.model

    def columns(self, producing: type[Model]) -> tuple[str, str, str]:
        """Return the columns to match, in producer and mapping, and the cell's."""
        mapping, on = self.resolved(), self.on or self.match
        return _column(producing, self.match), _column(mapping, on), _column(mapping, self.cell)

    def problem(self, producing: type[Model]) -> str | None:
        """Say why a producing model's triggers cannot use this mapping."""
        try:
            mapping = self.resolved()
            self.columns(producing)
        except (LookupError, FieldDoesNotExist) as exc:
            return f"trigger_cells names a model or column that does not exist ({exc})"
        if silo_of(mapping) not in (SiloMode.CONTROL, EVERY_SILO):
            return f"trigger_cells names {mapping._meta.label}, which is not a table of control"
        return None


type TriggerCells = Literal["all"] | CellMapping


def names_of_row(instance: Any) -> Collection[str]:
    """Return the cells to tell about a row, as its model's triggers find them."""
    cells: TriggerCells = instance.trigger_cells
    if cells == "all":
        return [cell.name for cell in all_cells()]
    mapped = cells.resolved()._default_manager.using(instance._state.db)
    rows = mapped.filter(**{cells.on or cells.match: getattr(instance, cells.match)})
    return sorted(set(rows.values_list(cells.cell, flat=True)))


def _column(model: type[Model], name: str) -> str:
    for field in model._meta.concrete_fields:
        if name in (field.attname, field.name):
            return str(field.column)
    raise FieldDoesNotExist(f"{model._meta.label} has no column {name!r}")
