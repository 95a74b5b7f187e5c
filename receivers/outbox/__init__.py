"""What receivers of outbox messages need; without it each would tell a change from a deletion in its own way."""

from __future__ import annotations

from receivers.outbox.tombstone import maybe_process_tombstone

__all__ = ["maybe_process_tombstone"]
