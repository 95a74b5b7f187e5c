"""One pass of a drainer: without it claimed shards would be held and nothing handled.

The messages of the claimed shards are read, grouped, handed to handlers with no
transaction open, and acknowledged in batches. Each message leaves the outbox
only after its handler returned (rule 2), by its exact id (rule 1).
"""

from __future__ import annotations

import json
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hybridcloud import hooks
from hybridcloud.outbox.declare.scope import Delivery
from hybridcloud.outbox.declare.signals import RetryLater
from hybridcloud.outbox.drain import call as handling
from hybridcloud.outbox.drain.ahead import NOTHING_KNOWN
from hybridcloud.outbox.drain.coalesce import (
    CATEGORY,
    HEADERS,
    ID,
    OBJECT,
    PAYLOAD,
    Group,
    Message,
    dates_of,
    each_group,
)
from hybridcloud.outbox.drain.failure import record_crash, record_failure, tell_lost
from hybridcloud.outbox.drain.parked import Freed, bring_back_freed
from hybridcloud.outbox.drain.plain import Begun, handle_in_a_row
from hybridcloud.outbox.drain.read import Reader, read_all, read_shards
from hybridcloud.outbox.drain.settle import Batch
from hybridcloud.outbox.drain.superseded import with_newer
from hybridcloud.registry import cell_is_broken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hybridcloud.outbox.drain.call import Route
    from hybridcloud.outbox.drain.lease import Leases
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.store.session import Engine, Key
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

_NOTHING: Final[frozenset[int]] = frozenset()


def _never() -> bool:
    return False


class Pass:
    """Drains what its leases hold, once.

    Args:
        engine: the statements of the outbox table.
        leases: the claimed shards.
        switches: the kill switches in force.
        read: how messages are read.
        synchronous: whether a writer's own flush does it; for metrics.
        raise_failures: raise the first failure, after it was recorded.
        heed_backoff: leave alone what waits for its next try.
        known: shards with the id up to which nothing of them is left.
        stopped: asked before each shard: what is left then is given back unhandled.
        deadline: by the monotonic clock; behind it no shard has its turn but the first.
        turn: seconds after which a shard leaves the rest to a later pass.

    Attributes:
        emptied: shards of which everything was read, handled and deleted.
        left: shards that had no turn or have more, with the lowest id that may be left.
        newest_read: the newest id that it read; 0: none.
        ended_at: the last shard that had its turn; None: all had.
    """

    def __init__(
        self,
        engine: Engine,
        leases: Leases,
        switches: Switches,
        *,
        read: Reader | None = None,
        synchronous: bool = False,
        raise_failures: bool = False,
        heed_backoff: bool = True,
        known: Mapping[Key, int] = NOTHING_KNOWN,
        stopped: Callable[[], bool] = _never,
        deadline: float = inf,
        turn: float = inf,
    ) -> None:
        self.engine = engine
        self.leases = leases
        self.switches = switches
        self.read = read or read_all()
        self.synchronous = synchronous
        self.raise_failures = raise_failures
        self.heed_backoff = heed_backoff
        self.in_testcase = engine.in_testcase
        self.signal = handling.signal_of(engine)
        self.batch = Batch(engine, leases, synchronous=synchronous)
        self.routes: dict[int, Route] = {}
        self._known = known
        self.stopped = stopped
        self.deadline = deadline
        self.turn = turn
        self.ended_at: Key | None = None
        self.freed: list[Freed] = []
        self.moved = 0
        self.newest_read = 0
        self.emptied: list[Key] = []
        self.left: dict[Key, int] = {}

    def run(self) -> int:
        """Drain the claimed shards once and give them back.

        Returns:
            How many messages left the outbox, or were tried and failed.

        Raises:
            OutboxFlushError: a handler failed and ``raise_failures`` is set.
            DatabaseError: the engine's own SQL failed; leases expire by themselves.
        """
        with handling.own_silo(self.engine), self.leases.watched():
            try:
                self._drain_all(self._read())
                self.batch.finish(self.leases.keys)
            except BaseException:
                # Also for SystemExit: what was handled is acknowledged, and the shards are given
                # back, so that an orderly stop is not taken for a crash (rule 8).
                self.batch.finish(self.leases.keys)
                raise
            finally:
                self.moved += self.batch.moved
        bring_back_freed(self.engine, self.freed)
        return self.moved

    def _read(self) -> list[Shard]:
        keys, rows = list(self.leases.keys), self.leases.read
        shards = read_shards(self.engine, keys, self.read, self._known, rows)
        self.batch.read_at = monotonic()
        # By a reader of its own a sync flush sees a part of each shard.
        self._leave([shard for shard in shards if not shard.is_whole])
        self.newest_read = max((shard.messages[-1][ID] for shard in shards), default=0)
        if hooks.active.after_fetch:
            count = sum(len(shard.messages) for shard in shards)
            for seam in hooks.active.after_fetch:
                seam(count)
        return shards

    def route(self, category: int) -> Route:
        """Return what the running code knows of a category, looked up once a pass."""
        route = self.routes.get(category)
        if route is None:
            route = self.routes[category] = handling.route_of(self.engine, category)
        return route

    def _drain_all(self, shards: list[Shard]) -> None:
        at = 0
        while at < len(shards) and not self._is_over(at):
            at, begun = handle_in_a_row(self, shards, at)
            if at == len(shards) or (begun is None and self._is_over(at)):
                break
            self._drain(shards[at], begun)
            at += 1
        if at < len(shards):
            self._leave(shards[at:])
            self.ended_at = shards[at - 1].key if at else None

    def _is_over(self, at: int) -> bool:
        return self.stopped() or (at > 0 and monotonic() > self.deadline)

    def turn_is_over(self, began: float, now: float) -> bool:
        """Say whether a shard whose turn began then leaves the rest of its messages."""
        return now - began > self.turn or now > self.deadline

    def cut(self, shard: Shard) -> None:
        """Leave the rest of a shard, whose turn is over, to a later pass."""
        shard.is_whole = False
        self._leave([shard])

    def _leave(self, shards: Sequence[Shard]) -> None:
        self.left.update((shard.key, shard.messages[0][ID]) for shard in shards)

    def _drain(self, shard: Shard, begun: Begun | None) -> None:
        """Drain a shard with all that may be out of the ordinary, or the rest of one."""
        groups, goes_on = begun or Begun((), goes_on=True)
        if begun is None:
            if shard.cell is not None and cell_is_broken(shard.cell):
                return  # its breaker opened during the pass: that is no attempt of this shard's
            is_alone = self.leases.suspect or not shard.touched
            if not is_alone and shard.failures.crash_is_due(heed=self.heed_backoff):
                return  # rule 8: a group that crashed its worker is tried alone, by another claim
            groups = [with_newer(shard, group) for group in each_group(shard.groups())]
            if self.leases.suspect and not self._settle_crash(shard, groups):
                return
        stopped = self._stopped_in(shard) if self.switches.categories else _NOTHING
        began = monotonic()
        for left, group in zip(range(len(groups) - 1, -1, -1), groups, strict=True):
            goes_on = goes_on and self._step(shard, group, stopped)
            if goes_on and left and self.turn_is_over(began, monotonic()):
                self.cut(shard)
                goes_on = False
        if goes_on:
            self.went_through(shard)

    def _step(self, shard: Shard, group: Group, stopped: frozenset[int]) -> bool:
        """Deal with one group with all that may be out of the ordinary; say whether the shard goes on."""
        if not self.leases.owns(shard.key):
            self.batch.drop(shard.key)
            return False
        is_free = self.route(group.newest[CATEGORY]).is_open and not (shard.touched or stopped)
        if not is_free and self._set_aside(shard, group, stopped):
            return True
        return self._handle(shard, group)

    def went_through(self, shard: Shard) -> None:
        """Note that all groups of a shard have had their turn."""
        if shard.touched:
            self.batch.forget(shard.failures.of_the_shard())
        elif shard.is_whole:
            self.emptied.append(shard.key)

    def _stopped_in(self, shard: Shard) -> frozenset[int]:
        return self.switches.stopped_categories(shard.scope_number, shard.identifier, shard.cell)

    def _settle_crash(self, shard: Shard, groups: list[Group]) -> bool:
        """Count what was running when the last drainer vanished (rule 8); say whether the shard goes on."""
        handling_then, self.leases.handling = self.leases.handling, None
        for group in groups if handling_then is not None else ():
            if handling_then in group.ids:
                groups.remove(group)
                return record_crash(self, shard, group)
        return True

    def _set_aside(self, shard: Shard, group: Group, stopped: frozenset[int]) -> bool:
        """Deal with a group that no handler may see now; say whether it was such a one."""
        message = group.newest
        category = message[CATEGORY]
        route = self.route(category)
        if route.is_retired:
            self.batch.drop_retired(category, self.captured(shard, group))
            return True
        if not route.is_open:
            self._park(shard, group, "unknown")
            return True
        key = (category, message[OBJECT])
        waits = (
            category in stopped
            or key in shard.held
            or (self.heed_backoff and shard.failures.waits_for(*key))
            or (shard.is_behind(message))
        )
        if waits:
            self._park(shard, group, "held")
        return waits

    def _park(self, shard: Shard, group: Group, reason: str, **more: Any) -> None:
        """Move a group's message out of the way; older ones of a coalescing group go for good."""
        newest = group.newest[ID]
        shard.is_whole = False
        self.batch.park(group.newest, reason, **more)
        older = [each for each in self.captured(shard, group) if each != newest]
        if older:
            self.take(shard, group, older, calls=0)
        if not shard.policy.coalesce:
            shard.hold(group.newest[CATEGORY], group.newest[OBJECT])

    def captured(self, shard: Shard, group: Group) -> list[int]:
        """Return the ids that go with the group: those read, and older parked ones of its object."""
        return shard.older_parked(group) + group.ids

    def take(self, shard: Shard, group: Group, ids: list[int], *, calls: int) -> None:
        """Gather captured messages for the next acknowledgement, parked ones from both tables.

        One that was parked when it was read may have been brought back since.
        """
        self.batch.take(group.newest[CATEGORY], ids, group.age, calls=calls)
        if shard.parked:
            self.batch.also_parked(set(ids).difference(group.ids))

    def _handle(self, shard: Shard, group: Group) -> bool:
        """Call the handler and settle the outcome; say whether the shard goes on."""
        message = group.newest
        if message[HEADERS] is not None and (error := handling.too_deep(message)) is not None:
            self.batch.flush()
            return record_failure(self, shard, group, error, dead=True)
        if self.leases.suspect and not self.leases.mark(shard.key, message[ID]):
            self.leases.lost.add(shard.key)
            return False
        if shard.policy.delivery is Delivery.AT_MOST_ONCE:
            return handling.at_most_once(self, shard, group, self.captured(shard, group))
        return self._attempt(shard, group)

    def _attempt(self, shard: Shard, group: Group) -> bool:
        captured = self.captured(shard, group) if shard.parked else group.ids
        try:
            if shard.policy.atomic:
                if not handling.in_transaction(self, shard, group, captured):
                    return False
            else:
                handling.call(self, shard, group.newest)
        except Exception as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
            return self.failed(shard, group, exc)
        self._succeeded(shard, group, captured)
        return True

    def failed(self, shard: Shard, group: Group, error: Exception) -> bool:
        """Settle what a handler raised: a wish to be called later, or a failure; say whether the shard goes on."""
        if not isinstance(error, RetryLater):
            return record_failure(self, shard, group, error)
        self._park(shard, group, "delayed", delay=error.delay.total_seconds(), error=error.reason)
        self.batch.flush(clear_mark=self._marked(shard))
        return True

    def lost(self, shard: Shard, group: Group, error: BaseException) -> None:
        """Tell of a message of an at-most-once scope whose handler failed."""
        tell_lost(self, shard, group, error)

    def freed_by(
        self, shard: Shard, category: int, object_identifier: int, message_id: int
    ) -> None:
        """Let go on what waited for a message that is settled, one way or the other."""
        settled = shard.failures.settled_by(
            category, object_identifier, message_id, coalesce=shard.policy.coalesce
        )
        self.freed += [
            Freed(shard.key, level, category, object_identifier) for _, level in settled if level
        ]

    def as_instance(self, shard: Shard, message: Message) -> OutboxTable:
        """Return a message as an instance of its outbox model, for an error."""
        columns = dict(zip(self.engine.tables.sharding_columns, shard.key, strict=True))
        added, due = dates_of(message)
        made = self.engine.outbox(
            category=message[CATEGORY],
            object_identifier=message[OBJECT],
            payload=None if message[PAYLOAD] is None else json.loads(message[PAYLOAD]),
            scheduled_for=due,
            date_added=added,
            **columns,
        )
        made.pk = message[ID]
        return made

    def _succeeded(self, shard: Shard, group: Group, captured: list[int]) -> None:
        policy, message = shard.policy, group.newest
        if shard.touched:
            what = (message[CATEGORY], message[OBJECT], message[ID])
            settled = shard.failures.settled_by(*what, coalesce=policy.coalesce)
            if settled:
                self.batch.forget(settled)
                self.freed_by(shard, *what)
        if policy.atomic:
            self.batch.count(message[CATEGORY], len(captured), group.age, calls=1)
            return
        self.take(shard, group, captured, calls=1)
        if self.batch.is_full(policy.ack, monotonic()) or self.leases.suspect:
            self.batch.flush(clear_mark=self._marked(shard))

    def _marked(self, shard: Shard) -> Key | None:
        return shard.key if self.leases.suspect else None
