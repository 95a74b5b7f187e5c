"""Finds due shards and spreads them over drain tasks: without it a message whose flush failed would lie for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.drain.call import policy_of
from hybridcloud.outbox.drain.lease import FIRST, Leases, due_params
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import Engine, Key
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

MOST_FOUND: Final = 10_000
"""Shards that one tick looks at; what is beyond is found by the drainers themselves."""
COMPACT_FROM: Final = 1000
"""Messages in a switched-off shard from which its superseded ones are deleted."""


def _targets(engine: Engine, switches: Switches) -> Iterator[str | None]:
    if engine.outbox.silo_mode is not SiloMode.CONTROL:
        yield None
        return
    for (cell,) in engine.query("cells", {}):
        if not kill_switches.is_cell_stopped(switches, cell):
            yield cell


def find_due_shards(outbox: type[OutboxTable], *, alias: str, limit: int) -> list[Key]:
    """Return keys of due shards, in key order within a cell; cost grows with shards, not messages."""
    engine, switches = Engine(outbox, alias), kill_switches.current()
    found: list[Key] = []
    if switches.everything:
        return found
    for cell in _targets(engine, switches):
        params = due_params(switches, after=FIRST, most=limit - len(found), cell=cell)
        found += engine.query("find_due", params)
        if len(found) >= limit:
            break
    return found


def split(due: Sequence[Key], parts: int) -> list[tuple[Key, int]]:
    """Share due shards among drain tasks.

    Returns:
        For each task the (scope, identifier) to begin behind, and how many
        shards to claim at once. The tasks' leases keep them off one another's
        shards; one that is done early goes on with what is left of the others.
    """
    share = max(1, -(-len(due) // max(1, parts)))
    starts = [FIRST, *(due[before - 1][-2:] for before in range(share, len(due), share))]
    return [(start, share) for start in starts]


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


def is_switched_off(outbox: type[OutboxTable], key: Key) -> bool:
    """Say whether a kill switch stops the whole shard."""
    switches = kill_switches.current()
    control = outbox.silo_mode is SiloMode.CONTROL
    if control and (key[0] in switches.cells):
        return True
    return switches.stops_shard(key[-2], key[-1], key[0] if control else None)


def claim_if_due(outbox: type[OutboxTable], key: Key, *, alias: str) -> Leases | None:
    """Claim a shard's lease; None if it isn't due or is taken.

    Where the lease is not drained with, it lapses by itself.
    """
    leases = Leases(Engine(outbox, alias))
    if is_switched_off(outbox, key) or not leases.claim_known([key]):
        return None
    return leases


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
    names = (*engine.tables.sharding_columns, "depth")
    rows = engine.query("depths", {"most": limit})
    return [dict(zip(names, row, strict=True)) for row in rows]


def has_stale(engine: Engine) -> bool:
    """Say whether a drainer vanished, or a group that crashed one is due again."""
    return bool(engine.query("stale", {})[0][0])
