"""The deepest shards of an outbox table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine

if TYPE_CHECKING:
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable


def shard_depths(
    outbox: type[OutboxTable], *, alias: str, limit: int | None
) -> list[dict[str, Any]]:
    """Return the deepest shards, parked messages included.

    Raises:
        ValueError: the limit is not positive.
    """
    if limit is not None and limit <= 0:
        raise ValueError(
            f"Limit {limit} of get_shard_depths_descending is not positive. Use None for all."
        )
    engine = Engine(outbox, alias)
    names = engine.tables.sharding_columns
    return [
        {**dict(zip(names, ShardKey(*key).columns(), strict=True)), "depth": depth}
        for *key, depth in engine.query("depths", {"most": limit})
    ]


def would_stop(outbox: type[OutboxTable], alias: str, switches: Switches) -> tuple[int, int]:
    """Return how many shards and messages kill switches would stop now."""
    shards: set[ShardKey] = set()
    messages = 0
    for *columns, category, count in Engine(outbox, alias).query("depths_by_category", {}):
        key = ShardKey(*columns)
        if switches.stops(key) or category in switches.stopped_categories(key):
            shards.add(key)
            messages += count
    return len(shards), messages
