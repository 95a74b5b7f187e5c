"""Remembers what of an outbox table is gone for good: without it an old snapshot would slow every pass.

While some transaction keeps an old snapshot, a report or a dump, rows that were
deleted since stay in the indexes, and each look for due shards steps over all
of them. A drainer that finds its looks slow therefore goes ahead by ids: it
looks at messages behind an id up to which all had their turn, and reads a shard
behind the id up to which it has itself seen the shard empty.

Both ids are behind no message that may still appear: ids are drawn before they
are committed, so an id counts as settled only once everybody who wrote when it
was read has ended (ENGINE 7). So nothing is passed by and no order changes.

What is there though it was passed, since it waited for its next try or was
brought back with its old id, is found by looks behind: by the primary key they
step over the dead ten times faster than a look at everything does, shard by
shard. Both read shards from their heads, whatever is remembered, and each takes
a small share of the time, however long the snapshot is held.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError

from hybridcloud.outbox.store.fence import Fence
from hybridcloud.outbox.store.session import NO_BOUND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized

    from hybridcloud.outbox.store.session import Engine, Key, Rows

_LOG = logging.getLogger(__name__)
EVERY: Final = 10.0
"""Seconds after which a drainer looks again at what it has passed; more, where the look would take too much of them."""
BEHIND: Final = 20
"""A drainer that goes ahead looks behind for at most so small a part of its time: a twentieth."""
EVERYTHING: Final = 100
"""The same for what claims at looks at everything take too long; to read the shards takes about as long again."""
ROWS: Final = 5000
"""Messages that one look by ids returns at most."""
LEASE_BYTES: Final = 1_000_000
"""Size of the lease table, with its indexes, from which it is worth a rewrite."""
_SETTLE_EVERY: Final = 0.1
_MOST_KNOWN: Final = 100_000
# A claim of 512 shards takes 10 to 15 ms, of one shard less than 2.
_SLOW: Final = 0.005
_SLOW_SHARD: Final = 0.000_05
_SLOW_CLAIMS: Final = 3
"""Slow claims one after another that may be no accident."""
# A look behind that finds little and takes no longer has stepped over so few dead that no claim is slow for them.
_QUICK: Final = 0.001


class _Pace:
    """How often a kind of look is taken.

    Args:
        share: how many times longer than such a look it is to the next one.
        cells: all target cells that are looked at so; they share the time.
    """

    def __init__(self, share: int, cells: Sized) -> None:
        self._share = share
        self._cells = cells
        self.due = float("-inf")

    @property
    def is_due(self) -> bool:
        return monotonic() >= self.due

    def looked(self, seconds: float) -> None:
        """Note that such a look has taken so many seconds."""
        self.due = monotonic() + max(EVERY, seconds * self._share * len(self._cells))


class _Round:
    """A round of going ahead, from what was passed to the newest message.

    Attributes:
        at: the id behind which it goes on.
        to: the id up to which it reads; `NO_BOUND`: to the newest.
        settled: what was settled when it began, and so is seen by it.
        left: shards that had their turn and have more, with the lowest id that may be left.
    """

    def __init__(self, passed: int, settled: int) -> None:
        self.at = passed
        self.to = NO_BOUND
        self.settled = settled
        self.left: dict[Key, int] = {}

    @property
    def passed(self) -> int:
        """The id up to which all messages had their turn."""
        return min([self.settled, self.to, *(first - 1 for first in self.left.values())])


class Horizon:
    """What one thread of a drainer knows of an outbox table; in control, of one target cell's part of it.

    Args:
        cells: all target cells of the table that the thread knows of.

    Attributes:
        emptied: shards with the id up to which nothing of them is left.
        passed: the id up to which all messages had their turn.
        settled: the id up to which all messages are committed or will never be.
    """

    def __init__(self, cells: Sized) -> None:
        self.emptied: dict[Key, int] = {}
        self.passed = 0
        self.settled = 0
        self._slow_claims = 0
        self._everything = _Pace(EVERYTHING, cells)
        self._behind = _Pace(BEHIND, cells)
        self._claiming = 0.0
        self._begun: int | None = None
        self._round: _Round | None = None
        self._candidate = 0
        self._fence: Fence | None = None
        self._settled_at = float("-inf")

    @property
    def _is_slow(self) -> bool:
        return self._slow_claims >= _SLOW_CLAIMS

    @property
    def leads(self) -> bool:
        """Whether a drainer may go ahead by ids instead of looking at everything."""
        return self._is_slow and self.passed > 0 and not self._everything.is_due

    def begin(self, engine: Engine) -> None:
        """Begin a look at everything, which reads each shard from its head."""
        if self._is_slow:
            _rewrite_leases(engine)
        self._begun, self._round = self.settled, None
        self._claiming = 0.0
        self.emptied.clear()

    def claimed(self, seconds: float, shards: int) -> None:
        """Learn from how long a claim of so many shards took whether looks at everything are slow."""
        excess = seconds - _SLOW - _SLOW_SHARD * shards
        self._claiming += max(0.0, excess)
        self._slow_claims = self._slow_claims + 1 if excess > 0 else 0

    def left(self, left: Mapping[Key, int]) -> None:
        """Note what a pass of the look at everything left: see `Pass.left`."""
        if self._begun is not None:
            self._begun = min([self._begun, *(first - 1 for first in left.values())])

    def ended(self) -> None:
        """Note that the look at everything is at its end."""
        if self._begun is not None:
            self.passed = self._begun
            self._everything.looked(self._claiming)
            self.look_again()
        self._begun = None

    def ahead(self, engine: Engine, cell: str | None) -> Rows:
        """Return the next messages behind `passed`: their shards and ids.

        Round after round, a part at a time. In a round no shard has a second turn: one that is
        deep does not keep the others waiting.
        """
        self._begun = None  # a look at everything that was left off for this ends no more
        this = self._round = self._round or _Round(self.passed, self.settled)
        rows = engine.query("ahead", {"cell": cell, "passed": this.at, "most": ROWS})
        this.to = rows[-1][-1] if len(rows) == ROWS else NO_BOUND
        return [row for row in rows if row[:-1] not in this.left]

    def went_ahead(self, left: Mapping[Key, int]) -> bool:
        """Note that what `ahead` returned had its turn, but for what was left; say whether there is more to do."""
        this = self._round
        if this is None:
            return False
        this.left.update(left)
        self.passed = max(self.passed, this.passed)
        if this.to < NO_BOUND:
            this.at = this.to
            return True
        self._round = None
        return bool(this.left)

    def behind(self, engine: Engine, cell: str | None) -> Rows:
        """Return the oldest messages up to `passed` that are there, if it is time to look for them.

        The first such look tells as well whether claims were slow for the dead, or by accident.
        """
        if not self._behind.is_due:
            return []
        _rewrite_leases(engine)
        begun = monotonic()
        rows = engine.query("behind", {"cell": cell, "passed": self.passed, "most": ROWS})
        seconds = monotonic() - begun
        self._behind.looked(seconds)
        if seconds < _QUICK:
            self._slow_claims = 0
        return rows

    def look_again(self) -> None:
        """Look behind as soon as may be: something came back with an old id."""
        self._behind.due = float("-inf")

    def empty(self, keys: Iterable[Key], settled: int) -> None:
        """Remember shards of which everything was read, handled and deleted.

        Args:
            keys: the shards; nothing of theirs was parked, before or by this.
            settled: what was settled before they were read.
        """
        if not (self._is_slow and settled):
            return
        if len(self.emptied) > _MOST_KNOWN:
            self.emptied.clear()
        self.emptied.update(dict.fromkeys(keys, settled))

    def settle(self, engine: Engine, newest: int) -> None:
        """Move on what is settled, towards the newest id that was read.

        Args:
            engine: the outbox table.
            newest: an id that was seen committed, before this call.
        """
        now = monotonic()
        if not self._is_slow or now - self._settled_at < _SETTLE_EVERY:
            return
        self._settled_at = now
        if self._fence is None and newest > self.settled:
            self._candidate = newest
            self._fence = Fence.take(engine.connection, engine.outbox._meta.db_table)
        if self._fence is not None and self._fence.is_open(engine.connection):
            self.settled, self._fence = self._candidate, None


def _rewrite_leases(engine: Engine) -> None:
    """Free the lease table of its dead rows, if they are many and nobody uses it just now."""
    if engine.connection.in_atomic_block or engine.query("lease_bytes", {})[0][0] < LEASE_BYTES:
        return
    try:
        engine.query("rewrite_leases", {})
    except DatabaseError as exc:
        # In use, or of another owner: it is as slow as it was.
        _LOG.info("%s not rewritten: %s", engine.tables.lease, exc)


NOTHING_KNOWN: Final[Mapping[Key, int]] = {}


class _Known(threading.local):
    def __init__(self) -> None:
        self.horizons: dict[tuple[str, str], dict[str | None, Horizon]] = {}


_known = _Known()


def horizon_of(engine: Engine, cell: str | None) -> Horizon:
    """Return what this thread knows of an outbox table, or of one target cell's part of it."""
    cells = _known.horizons.setdefault((engine.tables.label, engine.alias), {})
    return cells.setdefault(cell, Horizon(cells))


def forget() -> None:
    """Forget what this thread knows, as between two tests."""
    _known.horizons.clear()
