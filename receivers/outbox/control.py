"""Receivers of the messages from control."""

from __future__ import annotations

from hybridcloud.outbox import process_control_outbox
from receivers.outbox import built_in
from silos import SiloMode


def connect_models() -> None:
    """Connect the handlers of replicated models that live in control."""
    built_in.connect_models(process_control_outbox, SiloMode.CONTROL)
