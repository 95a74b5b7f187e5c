"""Which shards are due, and which of them come next.

Where there is more to do than time, a drain ends before all shards had their turn. The next
drain of this thread goes on behind them. Other threads begin elsewhere, so no more is needed: one
that begins at the same place finds the shards claimed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import batched
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import Engine, Key
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

FIRST: Final[Key] = (-1, 0)
"""A cursor before all shards: (scope, identifier)."""


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


def due_params(
    switches: Switches,
    *,
    after: Key,
    most: int,
    cell: str | None,
    heed_backoff: bool = True,
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


class Turns:
    """Where the last drain of an outbox table ended, on this thread."""

    def __init__(self) -> None:
        self._cell: str | None = None
        self._shards: dict[str | None, Key] = {}

    def of_cells(self, cells: Sequence[str | None]) -> list[str | None]:
        """Return target cells, first those that had no turn when the last drain ended."""
        at = cells.index(self._cell) + 1 if self._cell in cells else 0
        return [*cells[at:], *cells[:at]]

    def ended_in(self, cell: str | None) -> None:
        """Note the target cell that had the last turn."""
        self._cell = cell

    def last_shard(self, cell: str | None) -> Key | None:
        """Return the (scope, identifier) of the shard that had the last turn in a cell; None: all had theirs."""
        return self._shards.get(cell)

    def of_shards(
        self, cell: str | None, keys: Iterable[Key], most: int
    ) -> Iterator[Sequence[Key]]:
        """Yield shards by so many at most, first those behind the one that had the last turn in a cell."""
        ordered = sorted(keys)
        last = self.last_shard(cell)
        at = bisect_right(ordered, last, key=itemgetter(slice(-2, None))) if last else 0
        for part in (ordered[at:], ordered[:at]):
            yield from batched(part, most)

    def ended_at(self, cell: str | None, shard: Key | None) -> None:
        """Note the shard that had the last turn in a cell; None: all had theirs."""
        if shard is None:
            self._shards.pop(cell, None)
        else:
            self._shards[cell] = shard


class _Known(threading.local):
    def __init__(self) -> None:
        self.turns: dict[tuple[str, str, str], Turns] = {}


_known = _Known()


def turns_of(engine: Engine, look: str = "") -> Turns:
    """Return what this thread remembers of an outbox table; of a kind of look that has turns of its own."""
    return _known.turns.setdefault((engine.tables.label, engine.alias, look), Turns())


def forget() -> None:
    """Forget what this thread remembers, as between two tests."""
    _known.turns.clear()
