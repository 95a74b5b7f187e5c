"""Drains outbox tables: without it committed messages would wait for ever.

A drainer claims due shards, pass by pass, until nothing is due or its time
budget is spent. It never runs inside a transaction.
"""

from __future__ import annotations

from itertools import chain, count, filterfalse
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from hybridcloud.outbox.drain.ahead import NOTHING_KNOWN, Horizon, horizon_of
from hybridcloud.outbox.drain.due import FIRST, turns_of
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.drain.work import Pass
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import Engine, Key
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hybridcloud.outbox.store.session import Rows
    from hybridcloud.outbox.store.tables import OutboxTable

SHARDS_PER_PASS: Final = 512
"""Shards that a pass claims at most: of half as many a message costs a tenth more where each has one."""
SUSPECTS_EVERY: Final = 1.0
"""Seconds after which a drain looks again for shards whose drainer vanished."""
BUDGET: Final = 30.0
"""Seconds after which a drain task begins with no further shard."""
TURN: Final = 5.0
"""Seconds of a pass after which a shard leaves the rest of its messages, so that others have their turn."""


class Drainer:
    """Drains one outbox table on one database.

    Args:
        outbox: the outbox model.
        alias: the database.
        heed_backoff: leave alone what waits for its next try.
        raise_failures: raise the first failure, after it was recorded.
        stopped: asked before each pass and each shard: whether to end soon.
    """

    def __init__(
        self,
        outbox: type[OutboxTable],
        alias: str,
        *,
        heed_backoff: bool = True,
        raise_failures: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine = Engine(outbox, alias)
        self._heed_backoff = heed_backoff
        self._raise_failures = raise_failures
        self._stopped = stopped
        self._deadline = self._turn = inf

    def sweep(
        self,
        *,
        budget: float = BUDGET,
        after: Key = FIRST,
        most: int = SHARDS_PER_PASS,
        whole: bool = False,
        rounds: int | None = None,
    ) -> int:
        """Drain due shards, from a cursor on and round, until nothing is due or time is up.

        Args:
            budget: seconds after which no further shard has its turn; the first one always has.
            after: the (scope, identifier) to begin behind, so that several
                drainers begin at several places.
            most: shards that one pass claims.
            whole: look at everything, also where going ahead by ids would do (`Horizon`).
            rounds: passes for each target after which it ends; None: until nothing is due.

        Returns:
            How many messages left the outbox, or were tried and failed.
        """
        self.engine.refuse_transaction("a drain")
        self._deadline, self._turn = monotonic() + budget, TURN
        turns = turns_of(self.engine)
        total = 0
        cursors: dict[str | None, Key] = {}
        look_for_suspects = 0.0
        for number in count(1):
            progress = False
            for cell in turns.of_cells(self._targets()):
                horizon = horizon_of(self.engine, cell)
                if horizon.leads and not whole:
                    moved, goes_on = self._go_ahead(horizon, cell, most)
                else:
                    cursor = cursors.get(cell) or turns.last_shard(cell) or after
                    moved, cursors[cell] = self._go_round(horizon, cell, cursor, most)
                    goes_on = moved > 0 or cursors[cell] != cursor
                total += moved
                progress = progress or goes_on
                if self._is_over():
                    turns.ended_in(cell)
                    break
            # Later than what is due, which has a writer who may wait, but though the time is over: else
            # slow handlers would keep a lost drainer's shards waiting for ever.
            if monotonic() >= look_for_suspects:
                moved = self._take_over()
                total += moved
                progress = progress or moved > 0
                look_for_suspects = monotonic() + SUSPECTS_EVERY
            if self._is_over() or number == rounds:
                break
            if not progress and not (self._heed_backoff and self._brought_back()):
                break
        return total

    def _brought_back(self) -> bool:
        """Bring back what was parked and is due; say whether anything was."""
        if not bring_back(self.engine, kill_switches.current()):
            return False
        for cell in self._targets():
            horizon_of(self.engine, cell).look_again()
        return True

    def _is_over(self) -> bool:
        return monotonic() > self._deadline or self._stopped()

    def _go_round(
        self, horizon: Horizon, cell: str | None, cursor: Key, most: int
    ) -> tuple[int, Key]:
        """Drain the next due shards behind a cursor; return how many messages moved and the next cursor."""
        if cursor == FIRST:
            horizon.begin(self.engine)
        begun = monotonic()
        leases = self._claim(cell, cursor, most)
        keys = list(leases.keys)
        horizon.claimed(monotonic() - begun, len(keys))
        moved, last = 0, None
        if keys:
            run = self._run(leases, horizon)
            moved = run.moved
            last = None if run.ended_at is None else run.ended_at[-2:]
            horizon.left(run.left)
        if last is None and len(keys) == most:
            last = keys[-1][-2:]
        turns_of(self.engine).ended_at(cell, last)
        if last is None:
            horizon.ended()
        return moved, last or FIRST

    def _go_ahead(self, horizon: Horizon, cell: str | None, most: int) -> tuple[int, bool]:
        """Drain what was passed, if it is time, and what is next; return how many moved and whether there is more."""
        behind = 0
        if rows := horizon.behind(self.engine, cell):
            behind, _ = self._drain_shards_of(rows, horizon, cell, most, is_behind=True)
        if behind and self._is_over():
            return behind, True
        rows = horizon.ahead(self.engine, cell)
        ahead, left = self._drain_shards_of(rows, horizon, cell, most)
        goes_on = left is None or horizon.went_ahead(left)
        return behind + ahead, goes_on or behind + ahead > 0

    def _drain_shards_of(
        self, rows: Rows, horizon: Horizon, cell: str | None, most: int, *, is_behind: bool = False
    ) -> tuple[int, dict[Key, int] | None]:
        """Drain the shards of messages; return how many moved and what was left, or None: not all had their turn."""
        switches = kill_switches.current()
        turns = turns_of(self.engine, "behind" if is_behind else "")
        known = NOTHING_KNOWN if is_behind else horizon.emptied
        moved, left = 0, dict[Key, int]()
        wanted = filterfalse(switches.stops, {row[:-1] for row in rows})
        for keys in turns.of_shards(cell, wanted, most):
            if moved and self._is_over():
                return moved, None
            leases = Leases(self.engine)
            if leases.claim_known(keys, heed_backoff=self._heed_backoff):
                run = self._run(leases, horizon, known)
                moved += run.moved
                left.update(run.left)
                turns.ended_at(cell, (run.ended_at or keys[-1])[-2:])
                if run.ended_at is not None:
                    return moved, None
        turns.ended_at(cell, None)
        return moved, left

    def once(self) -> int:
        """Drain each shard that has messages once; in what order is not said."""
        self.engine.refuse_transaction("a drain")
        self._deadline = self._turn = inf
        total = self._take_over()
        for cell in self._targets():
            cursor: Key | None = FIRST
            while cursor is not None:
                leases = self._claim(cell, cursor, SHARDS_PER_PASS)
                full = len(leases.keys) == SHARDS_PER_PASS
                cursor = leases.keys[-1][-2:] if full else None
                if leases.keys:
                    total += self._run(leases).moved
        return total

    def _claim(self, cell: str | None, cursor: Key, most: int) -> Leases:
        leases = Leases(self.engine)
        leases.claim_due(
            after=cursor,
            most=most,
            switches=kill_switches.current(),
            cell=cell,
            heed_backoff=self._heed_backoff,
        )
        return leases

    def _run(
        self,
        leases: Leases,
        horizon: Horizon | None = None,
        known: Mapping[Key, int] = NOTHING_KNOWN,
    ) -> Pass:
        settled = horizon.settled if horizon else 0
        run = Pass(
            self.engine,
            leases,
            kill_switches.current(),
            raise_failures=self._raise_failures,
            heed_backoff=self._heed_backoff,
            known=known,
            stopped=self._stopped,
            # A lost drainer's shard has a turn though the time is over.
            deadline=inf if leases.suspect else self._deadline,
            turn=self._turn,
        )
        run.run()
        if horizon:
            horizon.empty(run.emptied, settled)
            horizon.settle(self.engine, run.newest_read)
        return run

    def _take_over(self) -> int:
        """Drain the shards of lost drainers, each alone; at least one, unless a stop is asked for."""
        return sum(self._run(leases).moved for leases in self._suspects())

    def _suspects(self) -> Iterator[Leases]:
        """Claim, one after another, shards that must be drained alone (rule 8)."""
        seen: set[Key] = set()
        while not self._stopped():
            leases = Leases(self.engine)
            switches = kill_switches.current()
            if switches.everything or not leases.claim_suspect(
                switches=switches, heed_backoff=self._heed_backoff
            ):
                return
            again = leases.keys[0] in seen
            seen.add(leases.keys[0])
            yield leases
            if again or self._is_over():
                return

    def _targets(self) -> list[str | None]:
        """Return the target cells to visit; None stands for all of a cell's own table."""
        switches = kill_switches.current()
        if switches.everything:
            return []
        if self.engine.outbox.silo_mode is not SiloMode.CONTROL:
            return [None]
        cells = chain.from_iterable(self.engine.query("cells", {}))
        return [cell for cell in cells if not kill_switches.is_cell_stopped(switches, cell)]
