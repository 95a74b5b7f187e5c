"""Carries deletions over foreign keys between silos in a test."""

from __future__ import annotations

from typing import Final

from hybridcloud.tombstones.cascade import (
    foreign_keys,
    process_hybrid_cloud_foreign_key_cascade_batch,
)
from silos import SiloMode, assume_silo
from silos.cells import all_cells

_MOST_BATCHES: Final = 100


def run_cascades(*cells: str) -> None:
    """Run the cascades of all keys to their end, in control and in cells.

    Wrap it in `outbox_runner()`, because its deletions write messages.

    Args:
        cells: the names of the cells; default: every cell.

    Raises:
        AssertionError: the cascade over a key does not end.
    """
    with assume_silo(SiloMode.CONTROL):
        _run(SiloMode.CONTROL)
    for name in cells or [cell.name for cell in all_cells()]:
        with assume_silo(SiloMode.CELL, cell=name):
            _run(SiloMode.CELL)


def _run(mode: SiloMode) -> None:
    for key in foreign_keys(mode):
        for _ in range(_MOST_BATCHES):
            if not process_hybrid_cloud_foreign_key_cascade_batch(key):
                break
        else:
            raise AssertionError(f"Endless cascade over {key.model.__name__}.{key.field.name}.")
