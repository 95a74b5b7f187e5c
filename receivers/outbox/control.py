"""Receivers of what control's outbox holds; without it changes in control would not reach the cells."""

from __future__ import annotations

from hybridcloud.outbox import process_control_outbox
from receivers.outbox import built_in
from silos import SiloMode


def connect_models() -> None:
    """Connect the handlers of the replicated models of control."""
    built_in.connect_models(process_control_outbox, SiloMode.CONTROL)
