"""Remembers whose turn is next: without it the first shards of a table would have all the time of each drain.

Where there is more to do than time, a drain ends before all had their turn. The
next drain of this thread goes on behind them. Other threads begin elsewhere, so
no more is needed: who begins at the same place finds the shards taken.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import batched
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridcloud.outbox.store.session import Engine, Key


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
