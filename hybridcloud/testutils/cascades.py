"""Carries deletions over foreign keys in a test: without it a test would need beat, and luck."""

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
    """Do all batches of all keys, in control and in these cells; default: in every cell.

    Wrap it in `outbox_runner()`: what it deletes writes messages.

    Raises:
        AssertionError: a key does not come to an end.
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
            raise AssertionError(
                f"No end of the cascade over {key.model.__name__}.{key.field.name}."
            )
