"""Lets each scheduler tick go on with backfills: without it a raised option would start nothing."""

from __future__ import annotations

from hybridcloud.backfill.run import backfill_outboxes_for
from hybridcloud.backfill.upgrade import post_upgrade, run_outbox_replications_for_self_hosted
from hybridcloud.backfill.versions import register_options
from hybridcloud.registry import backfill_outboxes
from silos import SiloMode


def go_on(silo_mode: str, scheduled_count: int) -> bool:
    """Go on with the backfills of a silo after a tick's fan-out.

    Args:
        silo_mode: the name of the silo's mode.
        scheduled_count: shards that the tick found due, in each of which something waits.

    Returns:
        Whether anything was written.
    """
    return backfill_outboxes_for(SiloMode[silo_mode], scheduled_count)


def connect() -> None:
    """Register the options, hook into the ticks, and listen to upgrades; called once apps are ready."""
    register_options()
    backfill_outboxes.fill(go_on)
    post_upgrade.connect(
        run_outbox_replications_for_self_hosted, dispatch_uid="hybridcloud.backfill"
    )
