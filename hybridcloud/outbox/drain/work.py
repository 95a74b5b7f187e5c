"""One pass of a drainer: the one loop over the messages of claimed shards.

Handlers run with no transaction open. What is out of the ordinary is a call out of the loop.
"""

from __future__ import annotations

from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from hybridcloud import hooks
from hybridcloud.outbox.declare.scope import Delivery
from hybridcloud.outbox.declare.signals import RetryLater
from hybridcloud.outbox.drain.call import Caller, own_silo
from hybridcloud.outbox.drain.coalesce import Group
from hybridcloud.outbox.drain.failure import flush_error, setback, tell_failed, worker_lost
from hybridcloud.outbox.drain.gate import DROP, RUN, Gate, Park
from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.drain.parked import Freed, bring_back_freed
from hybridcloud.outbox.drain.read import NOTHING_KNOWN, Reader, read_all, read_shards
from hybridcloud.outbox.drain.settle import Settlement
from hybridcloud.outbox.drain.shard import Done
from hybridcloud.outbox.store.state import Level, Reason
from hybridcloud.raised import pass_on_stop, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hybridcloud.outbox.drain.coalesce import Message
    from hybridcloud.outbox.drain.gate import Answer
    from hybridcloud.outbox.drain.lease import Leases
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.switches import Switches


class Work:
    """Drains what its leases hold, once.

    Args:
        leases: the claimed shards.
        switches: the kill switches in force.
        read: how messages are read.
        synchronous: whether a writer's own flush does it; for metrics.
        raise_failures: raise the first failure, after it was recorded.
        heed_backoff: leave alone what waits for its next try.
        known: shards with the id up to which nothing of them is left.
        stopped: asked before each shard: what is left then is given back unhandled.
        deadline: by the monotonic clock; behind it no shard begins but the first.
        time_slice: seconds after which a shard leaves the rest to a later pass.
    """

    def __init__(
        self,
        engine: Engine,
        leases: Leases,
        switches: Switches,
        limits: Limits = LIMITS,
        *,
        read: Reader | None = None,
        synchronous: bool = False,
        raise_failures: bool = False,
        heed_backoff: bool = True,
        known: Mapping[ShardKey, int] = NOTHING_KNOWN,
        stopped: Callable[[], bool] = lambda: False,
        deadline: float = inf,
        time_slice: float = inf,
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._read = read or read_all(limits=limits)
        self._synchronous = synchronous
        self._raise_failures = raise_failures
        self._known = known
        self._stopped = stopped
        self._deadline = deadline
        self._time_slice = time_slice
        # The gate keeps the switches of the pass's begin: one answer for all of its messages (rule 5).
        self._gate = Gate(engine, switches, heed_backoff=heed_backoff, alone=leases.suspect)
        self._settle = Settlement(engine, leases, limits, synchronous=synchronous)
        self._call = Caller(engine, leases)
        self._done = Done()

    def run(self) -> Done:
        """Drain the claimed shards once and give them back.

        Raises:
            OutboxFlushError: a handler failed and ``raise_failures`` is set.
            DatabaseError: the engine's own SQL failed; leases expire by themselves.
        """
        done = self._done
        with own_silo(self._engine), self._leases.watched():
            try:
                shards = self._read_shards()
                with self._call:
                    self._drain_all(shards)
                self._settle.finish(self._leases.keys)
            except BaseException:
                # Also for SystemExit, and where the statement before failed: what was handled is
                # acknowledged and given back; an orderly stop is not a crash (rule 8).
                self._settle.finish(self._leases.keys)
                raise
            finally:
                done.moved += self._settle.moved
        if done.freed:
            bring_back_freed(self._engine, done.freed)
        return done

    def _read_shards(self) -> list[Shard]:
        keys, rows = list(self._leases.keys), self._leases.read
        shards = read_shards(self._engine, keys, self._read, self._known, rows)
        self._settle.read_at = monotonic()
        # By a reader of its own a sync flush sees a part of each shard.
        self._leave([shard for shard in shards if not shard.is_whole])
        # What was seen committed: from it a drainer that goes ahead learns what is settled.
        self._done.newest_read = max((shard.messages[-1].id for shard in shards), default=0)
        if hooks.active.after_fetch:
            count = sum(len(shard.messages) for shard in shards)
            for seam in hooks.active.after_fetch:
                seam(count)
        return shards

    def _leave(self, shards: Sequence[Shard]) -> None:
        self._done.left.update((shard.key, shard.messages[0].id) for shard in shards)

    def _drain_all(self, shards: Sequence[Shard]) -> None:
        for at, shard in enumerate(shards):
            if self._stopped() or (at and monotonic() > self._deadline):
                self._leave(shards[at:])
                self._done.ended_at = shards[at - 1].key if at else None
                return
            if self._gate.opens(shard):
                self._drain(shard)

    def _drain(self, shard: Shard) -> None:
        """Hand out a shard's messages, one after another."""
        newest, larger = shard.groups()
        if self._leases.handling is not None:
            settled = self._settle_crash(shard, newest, larger)
            if settled is None:
                return
            newest = settled
        settle, leases, policy, key = self._settle, self._leases, shard.policy, shard.key
        last = len(newest) - 1
        began = now = monotonic()
        for at, message in enumerate(newest):
            # Rule 7: a worker that was stalled past its lease handles nothing more of the shard.
            if not leases.owns(key, now):
                return
            settle.begin(now)
            if not self._hand_out(shard, message, larger.get(message.id)):
                return
            now = monotonic()
            # Rule 2: only what returned is gathered, so whatever is gathered may be acknowledged.
            if settle.is_full(policy.ack, now):
                settle.flush()
                now = monotonic()
            if at < last and (now - began > self._time_slice or now > self._deadline):
                # Not taken for empty by a drainer that goes ahead.
                self._leave([shard])
                return
        if shard.touched:
            settle.forget(shard.failures.of_the_shard())
        elif shard.is_whole:
            self._done.emptied.append(key)

    def _hand_out(self, shard: Shard, message: Message, group: Group | None) -> bool:
        """Deal with one message, or its group; say whether the shard goes on."""
        answer = self._gate.answer(shard, message)
        if answer is not RUN or shard.touched or shard.policy.is_special or self._leases.suspect:
            return self._closely(shard, group or Group.of(message), answer)
        try:
            self._call(shard, message, self._gate.routes[message.category])
        except BaseException as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
            pass_on_stop(exc)
            return self._failed(shard, group or Group.of(message), exc)
        self._settle.handled(message, group)
        return True

    def _settle_crash(
        self, shard: Shard, newest: Sequence[Message], larger: Mapping[int, Group]
    ) -> Sequence[Message] | None:
        """Count what ran when the last drainer vanished; return the rest (rule 8).

        None: the shard does not go on.
        """
        running, self._leases.handling = self._leases.handling, None
        for message in newest:
            group = larger.get(message.id) or Group.of(message)
            if running in group.ids:
                if not self._failed(shard, group, worker_lost(shard, message)):
                    return None
                return [each for each in newest if each is not message]
        return newest

    def _closely(self, shard: Shard, group: Group, answer: Answer) -> bool:
        """Deal with an exception; say whether the shard goes on."""
        if answer is DROP:
            self._settle.drop(group.newest.category, shard.captured(group))
            return True
        if isinstance(answer, Park):
            if answer.error is not None:
                return self._failed(shard, group, answer.error, dead=True)
            self._park(shard, group, answer)
            return True
        policy, message = shard.policy, group.newest
        once = policy.delivery is Delivery.AT_MOST_ONCE
        if policy.atomic or once:
            # Before the mark: an acknowledgement clears it.
            self._settle.flush()
        if self._leases.suspect and not self._leases.mark(shard.key, message.id):
            return False
        call = partial(self._call, shard, message, self._gate.route(message.category))
        return self._once(shard, group, call) if once else self._attempt(shard, group, call)

    def _attempt(self, shard: Shard, group: Group, call: Callable[[], None]) -> bool:
        """Call a handler of a touched, suspect or atomic shard."""
        captured = shard.captured(group)
        try:
            if shard.policy.atomic:
                if not self._settle.in_transaction(shard.key, group, captured, call):
                    return False
            else:
                call()
        except BaseException as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
            pass_on_stop(exc)
            return self._failed(shard, group, exc)
        if shard.touched:
            self._free(shard, group.newest)
        if not shard.policy.atomic:
            self._capture(shard, group)
            self._settle.handled(group.newest, group._replace(ids=captured))
        return True

    def _once(self, shard: Shard, group: Group, call: Callable[[], None]) -> bool:
        """Call an at-most-once handler: dead-lettered first, deleted after."""
        settle, message = self._settle, group.newest
        shard.is_whole = False
        # Committed before the handler runs, so that a crash cannot run it twice.
        if not settle.move_to_dead_letters(message):
            return True
        self._supersede(group, self._capture(shard, group))
        try:
            call()
        except BaseException as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
            pass_on_stop(exc)
            settle.note_error(message, exc)
            self._done.moved += 1
            self._done.failed += 1
            self._tell(shard, message, exc, attempts=1, dead=True)
            return True
        settle.leave_dead_letters(group)
        return True

    def _failed(
        self, shard: Shard, group: Group, error: BaseException, *, dead: bool = False
    ) -> bool:
        """Settle what a handler raised; say whether the shard goes on.

        Raises:
            OutboxFlushError: where the caller of the drain wants to be told.
        """
        settle, leases, key, message = self._settle, self._leases, shard.key, group.newest
        if isinstance(error, RetryLater):
            note = storable(error.reason) or None
            later = Park(Reason.DELAYED, delay=error.seconds, note=note)
            # No attempt is counted. Written at once, since the delay counts from the statement.
            self._park(shard, group, later)
            settle.flush()
            return True
        shard.is_whole = False
        # A worker that was stalled past its lease records no failure: another has the shard.
        if not leases.owns(key):
            return False
        found = setback(self._engine, shard, message, error, token=leases.token, dead=dead)
        # A poisoned object costs one row: only the newest is tried again.
        self._supersede(group, self._capture(shard, group))
        # What waited for a dead letter goes on, as after a success.
        if found.is_dead:
            self._free(shard, message)
        statements, params = found.statements, found.params
        if found.stops_shard:
            # Given back in the same transaction, so that its backoff is seen with it.
            releasing, more = leases.releasing([key])
            statements, params = [*statements, *releasing], params | more
        settle.send_with(statements, params)
        self._done.moved += 1
        # Also in this pass: newer messages of what failed must not overtake it.
        if not found.is_dead:
            shard.failures.hold(found.level, message.category, message.object_identifier)
            shard.hold(message)
        self._done.failed += 1
        self._tell(shard, message, error, attempts=found.attempts, dead=found.is_dead)
        return not found.stops_shard

    def _tell(self, shard: Shard, message: Message, error: BaseException, **how: Any) -> None:
        how["synchronous"] = self._synchronous
        tell_failed(self._engine, shard, message, error, **how)
        if self._raise_failures:
            raise flush_error(self._engine, shard, message, error) from error

    def _park(self, shard: Shard, group: Group, answer: Park) -> None:
        """Park a group's message; older ones of a coalescing group go for good."""
        shard.is_whole = False
        self._settle.park(group.newest, answer)
        self._supersede(group, self._capture(shard, group))
        # In order: later ids of the key wait for the parked one.
        if not shard.policy.coalesce:
            shard.hold(group.newest)

    def _capture(self, shard: Shard, group: Group) -> list[int]:
        """Return the ids of a group, noting those that were parked when read."""
        captured = shard.captured(group)
        if len(captured) > len(group.ids):
            self._settle.also_parked(set(captured).difference(group.ids))
        return captured

    def _supersede(self, group: Group, captured: Sequence[int]) -> None:
        older = [each for each in captured if each != group.newest.id]
        if older:
            self._settle.take(group.newest, older)

    def _free(self, shard: Shard, message: Message) -> None:
        """Forget the failures that a message ends, and free what waited for it."""
        settled = shard.failures.settled_by(message, coalesce=shard.policy.coalesce)
        self._settle.forget(settled)
        # Behind a failure of the whole shard nothing was parked: there is nothing to free.
        self._done.freed += [
            Freed(shard.key, row.level, message.category, message.object_identifier)
            for row in settled
            if row.level != Level.SHARD
        ]
