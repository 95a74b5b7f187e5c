"""Goes ahead by ids where an old snapshot slows looks for due shards.

While some transaction keeps an old snapshot, a report or a dump, rows that were deleted since stay
in the indexes, and each look for due shards steps over all of them. A drainer that finds its looks
slow therefore goes ahead by ids: it looks at messages behind an id up to which all had their time
slice, and reads a shard behind the id up to which it has itself seen the shard empty.

Neither id passes a message that may still appear: ids are drawn before they are committed, so an
id counts as settled only once every writer of that moment has ended (`store.fence`). So nothing
is missed and no order changes.

What is there though it was passed, since it waited for its next try or was brought back with its
old id, is found by looks behind: by the primary key they step over the dead rows ten times faster
than a look at everything does, shard by shard. Both read shards from their heads, and each takes
a small share of the time, however long the snapshot is held.
"""

from __future__ import annotations

import logging
import threading
from itertools import filterfalse
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from django.db import DatabaseError

from hybridcloud.outbox.drain.due import cursor_at, round_robin_of
from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.drain.read import NOTHING_KNOWN
from hybridcloud.outbox.store.fence import Fence
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import NO_BOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Sized

    from hybridcloud.outbox.drain.shard import Done
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.switches import Switches

_LOG = logging.getLogger(__name__)
_MOST_KNOWN: Final = 100_000
type Rows = list[tuple[ShardKey, int]]
"""Messages: their shards and ids."""


type _Turn = tuple[int, dict[ShardKey, int] | None]


class Drain(Protocol):
    """Drains those of some shards that are free."""

    def __call__(self, keys: Sequence[ShardKey], known: Mapping[ShardKey, int]) -> Done | None:
        """Return what was done; None: no shard was free."""
        ...


class _Pace:
    """How often a kind of look is taken; all target cells share the time."""

    def __init__(self, cells: Sized) -> None:
        self._cells = cells
        self.due = float("-inf")

    @property
    def is_due(self) -> bool:
        return monotonic() >= self.due

    def looked(self, seconds: float, share: int, least: float) -> None:
        """Note how long such a look took; it may take a share of the time."""
        self.due = monotonic() + max(least, seconds * share * len(self._cells))


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
        self.left: dict[ShardKey, int] = {}

    @property
    def passed(self) -> int:
        """The id up to which all messages had their turn."""
        return min([self.settled, self.to, *(first - 1 for first in self.left.values())])


class Ahead:
    """What one thread of a drainer knows of a table, or a cell's part of it.

    Attributes:
        limits: when looks are slow, and how often each kind is taken.
        emptied: shards with the id up to which nothing of them is left.
        passed: the id up to which all messages had their time slice.
        settled: the id up to which all messages are committed or will never be.
    """

    def __init__(self, cells: Sized) -> None:
        self.limits = LIMITS
        self.emptied: dict[ShardKey, int] = {}
        self.passed = 0
        self.settled = 0
        self._slow_claims = 0
        self._everything = _Pace(cells)
        self._behind = _Pace(cells)
        self._claiming = 0.0
        self._begun: int | None = None
        self._round: _Round | None = None
        self._candidate = 0
        self._fence: Fence | None = None
        self._settled_at = float("-inf")

    @property
    def _is_slow(self) -> bool:
        return self._slow_claims >= self.limits.slow_claims

    @property
    def leads(self) -> bool:
        """Whether a drainer may go ahead by ids instead of looking at everything."""
        return self._is_slow and self.passed > 0 and not self._everything.is_due

    def begin(self, engine: Engine) -> None:
        """Begin a look at everything, which reads each shard from its head."""
        if self._is_slow:
            _rewrite_leases(engine, self.limits.lease_bytes)
        self._begun, self._round = self.settled, None
        self._claiming = 0.0
        # Each shard is read from its head now: what was believed of it is learned anew.
        self.emptied.clear()

    def claimed(self, seconds: float, shards: int) -> None:
        """Learn from a claim's time whether looks at everything are slow."""
        excess = seconds - self.limits.slow_s - self.limits.slow_shard_s * shards
        self._claiming += max(0.0, excess)
        # In a row: one slow claim may be the machine's.
        self._slow_claims = self._slow_claims + 1 if excess > 0 else 0

    def drained(self, engine: Engine, done: Done, settled: int) -> None:
        """Learn from a pass; ``settled`` is what was settled before it read."""
        if self._begun is not None:
            # Of the look at everything: what it left was not passed.
            self._begun = min([self._begun, *(first - 1 for first in done.left.values())])
        if self._is_slow and settled:
            # Bounded: a shard that is forgotten is read from its head again.
            if len(self.emptied) > _MOST_KNOWN:
                self.emptied.clear()
            self.emptied.update(dict.fromkeys(done.emptied, settled))
        self._settle(engine, done.newest_read)

    def ended(self) -> None:
        """Note that the look at everything is at its end."""
        if self._begun is not None:
            self.passed = self._begun
            self._everything.looked(
                self._claiming, self.limits.everything_share, self.limits.look_every_s
            )
            self.look_again()
        self._begun = None

    def go(
        self,
        engine: Engine,
        cell: str | None,
        most: int,
        drain: Drain,
        *,
        switches: Callable[[], Switches],
        is_over: Callable[[], bool],
    ) -> tuple[int, bool]:
        """Drain what was passed, if it is time, and what is next.

        Returns how many messages moved, and whether there is more.
        """

        def drain_shards_of(rows: Rows, look: str, known: Mapping[ShardKey, int]) -> _Turn:
            robin = round_robin_of(engine, look)
            moved, left = 0, dict[ShardKey, int]()
            wanted = filterfalse(switches().stops, {key for key, _ in rows})
            for keys in robin.shards(cell, wanted, most):
                if moved and is_over():
                    return moved, None
                done = drain(keys, known)
                if done is not None:
                    moved += done.moved
                    left.update(done.left)
                    robin.ended_at(cell, cursor_at(done.ended_at or keys[-1]))
                    # Cut by the clock: the next call goes on behind the shard that was last.
                    if done.ended_at is not None:
                        return moved, None
            robin.ended_at(cell, None)
            return moved, left

        # First what was passed: it has waited longest.
        behind = 0
        if rows := self.behind(engine, cell):
            behind, _ = drain_shards_of(rows, "behind", NOTHING_KNOWN)
        if behind and is_over():
            return behind, True
        ahead, left = drain_shards_of(self.ahead(engine, cell), "", self.emptied)
        goes_on = left is None or self.went_ahead(left)
        return behind + ahead, goes_on or behind + ahead > 0

    def ahead(self, engine: Engine, cell: str | None) -> Rows:
        """Return the next messages behind `passed`: their shards and ids.

        Round after round, a part at a time. In a round no shard has a second turn: one that is
        deep does not keep the others waiting.
        """
        self._begun = None  # a look at everything that was left off for this ends no more
        this = self._round = self._round or _Round(self.passed, self.settled)
        rows = self._look(engine, "ahead", cell, this.at)
        this.to = rows[-1][-1] if len(rows) == self.limits.rows_per_look else NO_BOUND
        return [row for row in rows if row[0] not in this.left]

    def went_ahead(self, left: Mapping[ShardKey, int]) -> bool:
        """Note that what `ahead` returned was drained; say if there is more."""
        this = self._round
        if this is None:
            return False
        this.left.update(left)
        # Never back: each look behind reads up to it.
        self.passed = max(self.passed, this.passed)
        if this.to < NO_BOUND:
            this.at = this.to
            return True
        self._round = None
        return bool(this.left)

    def behind(self, engine: Engine, cell: str | None) -> Rows:
        """Return the oldest messages up to `passed`, if it is time to look.

        The first such look tells as well whether claims were slow for the dead, or by accident.
        """
        if not self._behind.is_due:
            return []
        _rewrite_leases(engine, self.limits.lease_bytes)
        begun = monotonic()
        rows = self._look(engine, "behind", cell, self.passed)
        seconds = monotonic() - begun
        self._behind.looked(seconds, self.limits.behind_share, self.limits.look_every_s)
        if seconds < self.limits.quick_s:
            self._slow_claims = 0
        return rows

    def _look(self, engine: Engine, name: str, cell: str | None, passed: int) -> Rows:
        params = {"cell": cell, "passed": passed, "most": self.limits.rows_per_look}
        return [(ShardKey(*key), each) for *key, each in engine.query(name, params)]

    def look_again(self) -> None:
        """Look behind as soon as may be: something came back with an old id."""
        self._behind.due = float("-inf")

    def _settle(self, engine: Engine, newest: int) -> None:
        """Move on what is settled, towards the newest id that was seen committed."""
        now = monotonic()
        if not self._is_slow or now - self._settled_at < self.limits.settle_every_s:
            return
        self._settled_at = now
        # Taken before it is asked: it opens once all writers of that moment have ended.
        if self._fence is None and newest > self.settled:
            self._candidate = newest
            self._fence = Fence.take(engine.connection, engine.outbox._meta.db_table)
        if self._fence is not None and self._fence.is_open(engine.connection):
            self.settled, self._fence = self._candidate, None


def _rewrite_leases(engine: Engine, least: int) -> None:
    """Free the lease table of its dead rows, if many, and if it is idle."""
    # In a transaction the lock of the table would last until its end.
    if engine.connection.in_atomic_block or engine.query("lease_bytes", {})[0][0] < least:
        return
    try:
        engine.query("rewrite_leases", {})
    except DatabaseError as exc:
        # In use, or of another owner: it is as slow as it was.
        _LOG.info("%s not rewritten: %s", engine.tables.lease, exc)


class _Known(threading.local):
    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[str | None, Ahead]] = {}


_known = _Known()


def ahead_of(engine: Engine, cell: str | None, limits: Limits = LIMITS) -> Ahead:
    """Return what this thread knows of an outbox table, or a cell's part."""
    cells = _known.tables.setdefault((engine.tables.label, engine.alias), {})
    known = cells.setdefault(cell, Ahead(cells))
    known.limits = limits
    return known


def forget() -> None:
    """Forget what this thread knows, as between two tests."""
    _known.tables.clear()
