"""Drains an outbox table, pass by pass, until nothing is due.

It never runs inside a transaction.
"""

from __future__ import annotations

from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from hybridcloud.outbox.drain.ahead import Ahead, ahead_of
from hybridcloud.outbox.drain.due import FIRST, cursor_at, round_robin_of, targets
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.drain.read import NOTHING_KNOWN
from hybridcloud.outbox.drain.work import Work
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hybridcloud.outbox.drain.due import Cursor
    from hybridcloud.outbox.drain.shard import Done
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable


class Drainer:
    """Drains one outbox table on one database.

    Args:
        outbox: the outbox model.
        alias: the database.
        limits: how much at once, and for how long.
        heed_backoff: leave alone what waits for its next try.
        raise_failures: raise the first failure, after it was recorded.
        stopped: asked before each pass and each shard: whether to end soon.
    """

    def __init__(
        self,
        outbox: type[OutboxTable],
        alias: str,
        *,
        limits: Limits = LIMITS,
        heed_backoff: bool = True,
        raise_failures: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = Engine(outbox, alias)
        self.limits = limits
        self._heed_backoff = heed_backoff
        self._raise_failures = raise_failures
        self._stopped = stopped
        self._deadline = self._time_slice = inf
        self._known_switches: Switches | None = None
        self.failed = 0
        """Messages that failed in this drainer's sweeps."""

    def sweep(
        self,
        *,
        budget: float | None = None,
        after: Cursor = FIRST,
        most: int | None = None,
        whole: bool = False,
        rounds: int | None = None,
    ) -> int:
        """Drain due shards, round after round, until none is due or time is up.

        Args:
            budget: seconds after which no further shard begins; the first one always does.
                None: as the limits say.
            after: the place to begin behind, so that several drainers begin at several places.
            most: shards that one pass claims; None: as the limits say.
            whole: look at everything, also where going ahead by ids would do (`Ahead`).
            rounds: passes for each target after which it ends; None: until nothing is due.

        Returns:
            How many messages left the outbox, or were tried and failed.
        """
        self.engine.refuse_transaction("a drain")
        limits = self.limits
        self._deadline = monotonic() + (limits.budget_s if budget is None else budget)
        self._time_slice, self._known_switches = limits.time_slice_s, None
        most = most or limits.shards_per_pass
        robin = round_robin_of(self.engine)
        total = 0
        cursors: dict[str | None, Cursor] = {}
        look_for_suspects = 0.0
        for number in count(1):  # pragma: no branch - it has no end
            progress = False
            for cell in robin.cells(targets(self.engine, self._switches())):
                ahead = ahead_of(self.engine, cell, limits)
                if ahead.leads and not whole:
                    moved, goes_on = self._go_ahead(ahead, cell, most)
                else:
                    # Behind the last drain's last time slice, else where this task was sent to.
                    cursor = cursors.get(cell) or robin.last_shard(cell) or after
                    moved, cursors[cell] = self._go_round(ahead, cell, cursor, most)
                    goes_on = moved > 0 or cursors[cell] != cursor
                total += moved
                progress = progress or goes_on
                if self._is_over():
                    # The next sweep begins with the next cell: a slow one takes no second turn.
                    robin.ended_in(cell)
                    break
            # Later than what is due, which has a writer who may wait, but though the time is over:
            # else slow handlers would keep a lost drainer's shards waiting for ever.
            if monotonic() >= look_for_suspects:
                moved = self._take_over()
                total += moved
                progress = progress or moved > 0
                look_for_suspects = monotonic() + limits.suspects_every_s
            if self._is_over() or number == rounds:
                break
            if not progress and not (self._heed_backoff and self._brought_back()):
                break
        return total

    def once(self) -> int:
        """Drain each shard that has messages once; in what order is not said."""
        self.engine.refuse_transaction("a drain")
        self._deadline = self._time_slice = inf
        self._known_switches = None
        most = self.limits.shards_per_pass
        # First: a shard whose drainer was lost is not due, and would be left out.
        total = self._take_over()
        for cell in targets(self.engine, self._switches()):
            cursor: Cursor | None = FIRST
            while cursor is not None:
                leases = self._claim(cell, cursor, most)
                cursor = cursor_at(leases.keys[-1]) if len(leases.keys) == most else None
                if leases.keys:
                    total += self._work(leases).moved
        return total

    def _go_round(
        self, ahead: Ahead, cell: str | None, cursor: Cursor, most: int
    ) -> tuple[int, Cursor]:
        """Drain the due shards behind a place; return what moved, and the next."""
        if cursor == FIRST:
            ahead.begin(self.engine)
        begun = monotonic()
        leases = self._claim(cell, cursor, most)
        keys = list(leases.keys)
        ahead.claimed(monotonic() - begun, len(keys))
        # A claim may have taken a while: the next cell's reads the switches anew, like a pass.
        self._known_switches = None
        moved, last = 0, None
        if keys:
            done = self._work(leases, ahead)
            moved, last = done.moved, done.ended_at
        if last is None and len(keys) == most:
            last = keys[-1]
        at = None if last is None else cursor_at(last)
        round_robin_of(self.engine).ended_at(cell, at)
        if at is None:
            ahead.ended()
        return moved, at or FIRST

    def _go_ahead(self, ahead: Ahead, cell: str | None, most: int) -> tuple[int, bool]:
        def drain(keys: Sequence[ShardKey], known: Mapping[ShardKey, int]) -> Done | None:
            # Only what is free: a shard that another drainer has is found again by the next look.
            leases = Leases(self.engine)
            if leases.claim_known(keys, heed_backoff=self._heed_backoff):
                return self._work(leases, ahead, known)
            return None

        return ahead.go(
            self.engine, cell, most, drain, switches=self._switches, is_over=self._is_over
        )

    def _claim(self, cell: str | None, cursor: Cursor, most: int) -> Leases:
        leases, heed = Leases(self.engine), self._heed_backoff
        switches = self._switches()
        leases.claim_due(after=cursor, most=most, switches=switches, cell=cell, heed_backoff=heed)
        return leases

    def _work(
        self,
        leases: Leases,
        ahead: Ahead | None = None,
        known: Mapping[ShardKey, int] = NOTHING_KNOWN,
    ) -> Done:
        settled = ahead.settled if ahead else 0
        # Read behind the claim: a switch that is set meanwhile holds for the whole pass (rule 5).
        self._known_switches = None
        done = Work(
            self.engine,
            leases,
            self._switches(),
            self.limits,
            raise_failures=self._raise_failures,
            heed_backoff=self._heed_backoff,
            known=known,
            stopped=self._stopped,
            # A lost drainer's shard is drained though the time is over.
            deadline=inf if leases.suspect else self._deadline,
            time_slice=self._time_slice,
        ).run()
        self.failed += done.failed
        # Handlers may have taken a while: the next claim reads the switches anew.
        self._known_switches = None
        if ahead:
            ahead.drained(self.engine, done, settled)
            if done.freed:
                # What a success freed came back with an old id.
                ahead.look_again()
        return done

    def _take_over(self) -> int:
        """Drain the shards of lost drainers, each alone; one even if time is up."""
        return sum(self._work(leases).moved for leases in self._suspects())

    def _suspects(self) -> Iterator[Leases]:
        """Claim, one after another, shards that must be drained alone (rule 8)."""
        seen: set[ShardKey] = set()
        while not self._stopped():
            leases, switches = Leases(self.engine), self._switches()
            if switches.everything or not leases.claim_suspect(
                switches=switches, heed_backoff=self._heed_backoff
            ):
                return
            again = leases.keys[0] in seen
            seen.add(leases.keys[0])
            yield leases
            if again or self._is_over():
                return

    def _brought_back(self) -> bool:
        """Bring back what was parked and is due; say whether anything was."""
        # Asked first, since most tables have nothing parked and the question is one probe.
        parked = self.engine.query("any_parked", {})
        if not parked or not bring_back(self.engine, self._switches()):
            return False
        for cell in targets(self.engine, self._switches()):
            ahead_of(self.engine, cell, self.limits).look_again()
        return True

    def _switches(self) -> Switches:
        """Return the kill switches, read once a pass."""
        if self._known_switches is None:
            self._known_switches = kill_switches.current()
        return self._known_switches

    def _is_over(self) -> bool:
        return monotonic() > self._deadline or self._stopped()
