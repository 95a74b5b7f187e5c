"""Receivers of what cells' outboxes hold; without it changes in cells would not reach control."""

from __future__ import annotations

from hybridcloud.outbox import process_cell_outbox
from receivers.outbox import built_in
from silos import SiloMode


def connect_models() -> None:
    """Connect the handlers of the replicated models of cells."""
    built_in.connect_models(process_cell_outbox, SiloMode.CELL)
