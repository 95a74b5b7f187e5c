"""Distinguishes a change from a deletion, and records tombstones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcloud.errors import ConfigurationError
from hybridcloud.tombstones import RpcTombstone, cell_tombstone_service, control_tombstone_service
from silos import SiloMode
from silos.limits import silo_of
from silos.router import alias_for_model

if TYPE_CHECKING:
    from django.db.models import Model


def maybe_process_tombstone[M: Model](
    model: type[M], object_identifier: int, cell_name: str | None = None
) -> M | None:
    """Return the current row, or record its tombstone and return None.

    The tombstone is recorded in the other silo. The row is looked up with the
    model's base manager, which ignores the filters of the default one: a row
    that `objects` hides, such as an archived one, is not deleted, and a
    tombstone cannot be revoked.

    Args:
        model: the model whose row a message is about.
        object_identifier: its id.
        cell_name: for a model that lives in control, the message's target cell;
            leave it out for a model that lives in cells, because its tombstones
            go to control.

    Raises:
        ConfigurationError: the cell is missing for a model of control, or given
            for a model of cells.
        RpcError: the other silo did not accept the tombstone; the message will
            be retried.
    """
    _check_direction(model, cell_name)
    rows = model._base_manager.using(alias_for_model(model))
    found: M | None = rows.filter(pk=object_identifier).first()
    if found is not None:
        return found
    tombstone = RpcTombstone(table_name=model._meta.db_table, identifier=object_identifier)
    if cell_name is None:
        control_tombstone_service.record_remote_tombstone(tombstone=tombstone)
    else:
        cell_tombstone_service.record_remote_tombstone(cell_name=cell_name, tombstone=tombstone)
    return None


def _check_direction(model: type[Model], cell_name: str | None) -> None:
    """Refuse a tombstone that would go to the silo of the deleted row."""
    lives_in = silo_of(model)
    if lives_in is SiloMode.CONTROL and cell_name is None:
        raise ConfigurationError(
            f"No cell for a tombstone of {model._meta.label}, a model of control. Pass on the "
            f"cell_name that the receiver of process_control_outbox was called with."
        )
    if lives_in is SiloMode.CELL and cell_name is not None:
        raise ConfigurationError(
            f"Unexpected cell {cell_name!r} for a tombstone of {model._meta.label}, a model of "
            f"cells: it goes to control. Leave cell_name out."
        )
