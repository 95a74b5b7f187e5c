"""The silos of a Django project: which exist, and what lives in each.

The package is usable on its own: nothing in it depends on outboxes or RPC.
"""

from __future__ import annotations

from .cells import Cell, find_cells_for_orgs, find_cells_for_user
from .errors import AvailabilityError
from .limits import (
    all_silo_model,
    cell_silo_function,
    cell_silo_model,
    control_silo_function,
    control_silo_model,
)
from .mode import SiloMode, assume_silo, get_current_silo

__all__ = [
    "AvailabilityError",
    "Cell",
    "SiloMode",
    "all_silo_model",
    "assume_silo",
    "cell_silo_function",
    "cell_silo_model",
    "control_silo_function",
    "control_silo_model",
    "find_cells_for_orgs",
    "find_cells_for_user",
    "get_current_silo",
]
