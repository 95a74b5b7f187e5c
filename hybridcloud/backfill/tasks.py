"""Continues backfills at each scheduler tick."""

from __future__ import annotations

from hybridcloud.backfill.run import backfill_outboxes_for
from hybridcloud.backfill.upgrade import post_upgrade, run_outbox_replications_for_self_hosted
from hybridcloud.backfill.versions import register_options
from hybridcloud.registry import backfill_outboxes
from silos import SiloMode


def go_on(silo_mode: str, scheduled_count: int) -> bool:
    """Continue the backfills of a silo after a tick's fan-out.

    Args:
        silo_mode: the name of the silo's mode.
        scheduled_count: how many shards the tick found due; at least one message waits in each.

    Returns:
        Whether anything was written.
    """
    return backfill_outboxes_for(SiloMode[silo_mode], scheduled_count)


def connect() -> None:
    """Register the options, join the ticks and listen for upgrades.

    Called once the apps are ready.
    """
    register_options()
    backfill_outboxes.fill(go_on)
    post_upgrade.connect(
        run_outbox_replications_for_self_hosted, dispatch_uid="hybridcloud.backfill"
    )
