"""Remembers what of an outbox table is gone for good: without it an old snapshot would slow every pass.

While some transaction keeps an old snapshot, a report or a dump, rows that were
deleted since stay in the indexes, and each look for due shards steps over all
of them. A drainer that finds its looks slow therefore goes ahead by ids: it
looks at messages behind an id up to which a look at everything has seen all,
and reads a shard behind the id up to which it has itself seen the shard empty.

Both ids are behind no message that may still appear: ids are drawn before they
are committed, so an id counts as settled only once everybody who wrote when it
was read has ended (ENGINE 7). So nothing is passed by and no order changes;
what is brought back with an old id waits for the next look at everything, and
that reads each shard from its head, whatever is remembered.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError

from hybridcloud.outbox.walk import Fence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hybridcloud.outbox.statements import Engine, Key

_LOG = logging.getLogger(__name__)
EVERY: Final = 10.0
"""Seconds after which a drainer looks at everything again."""
ROWS: Final = 5000
"""Messages that one look ahead returns at most."""
LEASE_BYTES: Final = 1_000_000
"""Size of the lease table, with its indexes, from which it is worth a rewrite."""
_SETTLE_EVERY: Final = 0.1
_MOST_KNOWN: Final = 100_000
# A claim of 256 shards takes 5 to 10 ms, of one shard less than 2.
_SLOW: Final = 0.005
_SLOW_SHARD: Final = 0.000_05
_SLOW_CLAIMS: Final = 3
"""Slow claims one after another that are no accident."""


class Horizon:
    """What one thread of a drainer knows of an outbox table; in control, of one target cell's part of it.

    Attributes:
        emptied: shards with the id up to which nothing of them is left.
        passed: the id up to which a look at everything has seen all messages.
        settled: the id up to which all messages are committed or will never be.
    """

    def __init__(self) -> None:
        self.emptied: dict[Key, int] = {}
        self.passed = 0
        self.settled = 0
        self._slow_claims = 0
        self._looked_at = float("-inf")
        self._begun: int | None = None
        self._candidate = 0
        self._fence: Fence | None = None
        self._settled_at = float("-inf")

    @property
    def _is_slow(self) -> bool:
        return self._slow_claims >= _SLOW_CLAIMS

    @property
    def leads(self) -> bool:
        """Whether a drainer may go ahead by ids instead of looking at everything."""
        return self._is_slow and self.passed > 0 and monotonic() - self._looked_at < EVERY

    def begin(self, engine: Engine) -> None:
        """Begin a look at everything, which reads each shard from its head."""
        if self._is_slow:
            _rewrite_leases(engine)
        self._begun = self.settled
        self.emptied.clear()

    def claimed(self, seconds: float, shards: int) -> None:
        """Learn from how long a claim of so many shards took whether looks at everything are slow."""
        is_slow = seconds > _SLOW + _SLOW_SHARD * shards
        self._slow_claims = self._slow_claims + 1 if is_slow else 0

    def left_some(self) -> None:
        """Note that the look under way left messages behind, in a shard that is deep."""
        self._begun = None

    def ended(self) -> None:
        """Note that the look at everything is at its end."""
        if self._begun is not None:
            self.passed, self._looked_at = self._begun, monotonic()
        self._begun = None

    def ahead(self, last: int | None) -> None:
        """Note that all messages behind `passed` have had their turn, up to one or, with None, all."""
        self.passed = max(self.passed, self.settled if last is None else min(last, self.settled))

    def look_again(self) -> None:
        """Let the next look be at everything: something came back with an old id."""
        self._looked_at = float("-inf")

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
        self.horizons: dict[tuple[str, str, str | None], Horizon] = {}


_known = _Known()


def horizon_of(engine: Engine, cell: str | None) -> Horizon:
    """Return what this thread knows of an outbox table, or of one target cell's part of it."""
    return _known.horizons.setdefault((engine.tables.label, engine.alias, cell), Horizon())


def forget() -> None:
    """Forget what this thread knows, as between two tests."""
    _known.horizons.clear()
