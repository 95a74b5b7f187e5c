"""The built-in receivers of outbox messages, and helpers for others."""

from __future__ import annotations

from receivers.outbox.tombstone import maybe_process_tombstone

__all__ = ["maybe_process_tombstone"]
