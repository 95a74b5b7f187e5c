"""What a scheduler tick does besides finding due shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.drain.shard import policy_of
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey

if TYPE_CHECKING:
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.switches import Switches

MOST_FOUND: Final = 10_000
"""Shards that one tick looks at; what is beyond is found by the drainers themselves."""
COMPACT_FROM: Final = 1000
"""Messages in a switched-off shard from which its superseded ones are deleted."""


def tick(engine: Engine) -> int:
    """Bring back due messages and clean up; return how many came back.

    Leases of empty shards and failures of messages that are gone are swept, and deep shards that
    are switched off are compacted.
    """
    switches = kill_switches.current()
    moved = bring_back(engine, switches) if engine.query("any_parked", {}) else 0
    engine.query("sweep_leases", {})
    engine.query("sweep_failures", {})
    for key in _switched_off(engine, switches):
        _compact(engine, key)
    return moved


def _switched_off(engine: Engine, switches: Switches) -> list[ShardKey]:
    """Return switched-off shards of coalescing scopes that are deep."""
    if not switches.shards:
        return []
    depths = engine.query("depths", {"most": MOST_FOUND})
    deep = [ShardKey(*key) for *key, depth in depths if depth > COMPACT_FROM]
    return [
        key for key in deep if policy_of(find_scope(key.scope)).coalesce and switches.stops(key)
    ]


def _compact(engine: Engine, key: ShardKey) -> None:
    # Under a lease, so that no drainer runs a handler for what is deleted.
    leases = Leases(engine)
    if leases.claim_known([key], heed_backoff=False):
        try:
            engine.query("compact", engine.keys([key]))
        finally:
            leases.release()


def has_stale(engine: Engine) -> bool:
    """Say whether a drainer vanished or a group that crashed one is due."""
    return bool(engine.query("stale", {})[0][0])
