"""Receivers of the messages from cells."""

from __future__ import annotations

from hybridcloud.outbox import process_cell_outbox
from receivers.outbox import built_in
from silos import SiloMode


def connect_models() -> None:
    """Connect the handlers of replicated models that live in cells."""
    built_in.connect_models(process_cell_outbox, SiloMode.CELL)
