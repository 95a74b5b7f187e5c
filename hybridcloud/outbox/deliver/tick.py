"""Finds due shards and spreads them over drain tasks: without it a message whose flush failed would lie for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.drain.call import policy_of
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.store import switches as kill_switches
from silos import SiloMode

if TYPE_CHECKING:
    from hybridcloud.outbox.store.session import Engine, Key
    from hybridcloud.outbox.store.switches import Switches

MOST_FOUND: Final = 10_000
"""Shards that one tick looks at; what is beyond is found by the drainers themselves."""
COMPACT_FROM: Final = 1000
"""Messages in a switched-off shard from which its superseded ones are deleted."""


def tick(engine: Engine) -> int:
    """Do what a scheduler tick does besides finding shards; return how many messages came back.

    Due parked messages are brought back, leases and failures that nothing is
    left of are swept, and deep shards that are switched off are compacted.
    """
    switches = kill_switches.current()
    moved = bring_back(engine, switches)
    engine.query("sweep_leases", {})
    engine.query("sweep_failures", {})
    for key in _switched_off(engine, switches):
        _compact(engine, key)
    return moved


def _switched_off(engine: Engine, switches: Switches) -> list[Key]:
    """Return switched-off shards of coalescing scopes that are deep."""
    if not switches.shards:
        return []
    depths = engine.query("depths", {"most": MOST_FOUND})
    control = engine.outbox.silo_mode is SiloMode.CONTROL
    return [
        tuple(key)
        for *key, depth in depths
        if depth > COMPACT_FROM
        and policy_of(find_scope(key[-2])).coalesce
        and switches.stops_shard(key[-2], key[-1], key[0] if control else None)
    ]


def _compact(engine: Engine, key: Key) -> None:
    leases = Leases(engine)
    if leases.claim_known([key], heed_backoff=False):
        try:
            engine.query("compact", engine.keys([key]))
        finally:
            leases.release()


def has_stale(engine: Engine) -> bool:
    """Say whether a drainer vanished, or a group that crashed one is due again."""
    return bool(engine.query("stale", {})[0][0])
