"""Backfills: replicate rows that are older than their model's replication.

Names are loaded at first use because they need Django's apps to be ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hybridcloud.backfill.batch import BackfillBatch
    from hybridcloud.backfill.cursor import get_processing_state, set_processing_state
    from hybridcloud.backfill.run import backfill_outboxes_for, process_outbox_backfill_batch
    from hybridcloud.backfill.upgrade import (
        post_upgrade,
        run_outbox_replications_for_self_hosted,
    )
    from hybridcloud.backfill.versions import find_replication_version

OUTBOX_BACKFILLS_PER_MINUTE: Final = 10_000
"""The default of ``HYBRIDCLOUD["OUTBOX_BACKFILLS_PER_MINUTE"]``."""

_HOMES = {
    "BackfillBatch": "batch",
    "backfill_outboxes_for": "run",
    "find_replication_version": "versions",
    "get_processing_state": "cursor",
    "post_upgrade": "upgrade",
    "process_outbox_backfill_batch": "run",
    "run_outbox_replications_for_self_hosted": "upgrade",
    "set_processing_state": "cursor",
}

__all__ = [
    "OUTBOX_BACKFILLS_PER_MINUTE",
    "BackfillBatch",
    "backfill_outboxes_for",
    "find_replication_version",
    "get_processing_state",
    "post_upgrade",
    "process_outbox_backfill_batch",
    "run_outbox_replications_for_self_hosted",
    "set_processing_state",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hybridcloud.backfill.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
