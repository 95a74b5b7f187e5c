"""Which shards are due, and which of them come next.

A drain whose time is over ends before all shards had their time slice; the next drain of this
thread goes on behind them. Threads do not share this: leases keep them apart.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import batched, chain
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.drain.gate import is_cell_stopped, is_shard_stopped
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

type Cursor = tuple[int, int]
"""A place in a table, or in one target cell's part of it: (scope, identifier)."""
FIRST: Final[Cursor] = (-1, 0)
"""The place before all shards."""


def cursor_at(key: ShardKey) -> Cursor:
    """Return the place of a shard."""
    return (key.scope, key.identifier)


def targets(engine: Engine, switches: Switches) -> list[str | None]:
    """Return the target cells that may be served; None: a cell's own table."""
    # Nothing is scanned at all while everything is switched off.
    if switches.everything:
        return []
    if engine.outbox.silo_mode is not SiloMode.CONTROL:
        return [None]
    cells = chain.from_iterable(engine.query("cells", {}))
    # Left out before the scan, a stopped cell costs one probe, whatever it holds (rule 5).
    return [cell for cell in cells if not is_cell_stopped(switches, cell)]


def find_due_shards(outbox: type[OutboxTable], *, alias: str, limit: int) -> list[ShardKey]:
    """Return keys of due shards, in key order within a cell."""
    engine, switches = Engine(outbox, alias), kill_switches.current()
    # The scan skips from shard to shard, so its cost does not grow with their messages.
    found: list[ShardKey] = []
    for cell in targets(engine, switches):
        params = due_params(switches, after=FIRST, most=limit - len(found), cell=cell)
        found += [ShardKey(*row) for row in engine.query("find_due", params)]
        if len(found) >= limit:
            break
    return found


def find_suspect_shards(outbox: type[OutboxTable], *, alias: str, limit: int) -> list[ShardKey]:
    """Return keys of shards whose last drainer vanished, unless switched off."""
    engine, switches = Engine(outbox, alias), kill_switches.current()
    # All of them, a tiny table: those that are switched off take no other's place in the limit.
    found = [ShardKey(*row) for row in engine.query("find_suspect", {"most": None})]
    return [key for key in found if not is_shard_stopped(switches, key)][:limit]


def split(due: Sequence[ShardKey], parts: int) -> list[tuple[Cursor, int]]:
    """Share due shards among drain tasks.

    Returns:
        For each task the place to begin behind, and how many shards to claim at once. A task
        that is done early goes on with what is left of the others.
    """
    # Rounded up, so that there are at most as many tasks as parts.
    share = max(1, -(-len(due) // max(1, parts)))
    starts = [FIRST, *(cursor_at(due[at - 1]) for at in range(share, len(due), share))]
    return [(start, share) for start in starts]


def due_params(
    switches: Switches, *, after: Cursor, most: int, cell: str | None, heed_backoff: bool = True
) -> dict[str, Any]:
    """Return the parameters of the due-shards scan."""
    off = switches.shards_of(cell)
    return {
        "scope": after[0],
        "identifier": after[1],
        "most": most,
        "cell": cell,
        "heed": heed_backoff,
        "off_scopes": list(switches.scopes_of(cell)),
        "off_shard_scopes": [scope for scope, _ in off],
        "off_shards": [identifier for _, identifier in off],
    }


class RoundRobin:
    """Where the last drain of an outbox table ended, on this thread."""

    def __init__(self) -> None:
        self._cell: str | None = None
        self._shards: dict[str | None, Cursor] = {}

    def cells(self, cells: Sequence[str | None]) -> list[str | None]:
        """Return target cells, first those that the last drain did not reach."""
        # From the front where the cell of the last drain has nothing more.
        at = cells.index(self._cell) + 1 if self._cell in cells else 0
        return [*cells[at:], *cells[:at]]

    def ended_in(self, cell: str | None) -> None:
        """Note the target cell that was drained last."""
        self._cell = cell

    def last_shard(self, cell: str | None) -> Cursor | None:
        """Return where the last drain ended; None: all had their time slice."""
        return self._shards.get(cell)

    def shards(
        self, cell: str | None, keys: Iterable[ShardKey], most: int
    ) -> Iterator[Sequence[ShardKey]]:
        """Yield shards in batches, first those behind the last drain's end."""
        ordered = sorted(keys)
        last = self.last_shard(cell)
        at = bisect_right(ordered, last, key=cursor_at) if last else 0
        # Those before it come after: each has its time slice before one has a second.
        for part in (ordered[at:], ordered[:at]):
            yield from batched(part, most)

    def ended_at(self, cell: str | None, shard: Cursor | None) -> None:
        """Note where a drain ended; None: all shards had their time slice."""
        if shard is None:
            self._shards.pop(cell, None)
        else:
            self._shards[cell] = shard


class _Known(threading.local):
    def __init__(self) -> None:
        self.tables: dict[tuple[str, str, str], RoundRobin] = {}


_known = _Known()


def round_robin_of(engine: Engine, look: str = "") -> RoundRobin:
    """Return this thread's round robin of a table, for a kind of look."""
    return _known.tables.setdefault((engine.tables.label, engine.alias, look), RoundRobin())


def forget() -> None:
    """Forget what this thread remembers, as between two tests."""
    _known.tables.clear()
