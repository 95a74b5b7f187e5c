"""Gathers what a pass has settled and writes it to the database.

A message leaves the outbox only after its handler returned (rule 2), by its exact id (rule 1).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from django.db import DataError, transaction

from hybridcloud import hooks
from hybridcloud.errors import OutboxTransactionError
from hybridcloud.logs import log_limited
from hybridcloud.outbox.declare.category import category_name
from hybridcloud.outbox.drain.failure import log_recovered, park_params
from hybridcloud.outbox.store.session import engine_cursor, int_array
from hybridcloud.outbox.store.state import Reason
from hybridcloud.raised import NO_TEXT, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hybridcloud.outbox.drain.coalesce import Group, Message
    from hybridcloud.outbox.drain.gate import Park
    from hybridcloud.outbox.drain.lease import Leases
    from hybridcloud.outbox.drain.limits import Limits
    from hybridcloud.outbox.drain.shard import FailureRow
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.session import Engine

_LOG = logging.getLogger("hybridcloud.outbox")
_TEXTS: Final = ("error", "traceback", "park_error")
_ENDED: Final = (
    "The handler ended the transaction around it on {!r}: what it changed before is committed. Leave "
    "COMMIT and ROLLBACK to the scope, or declare it without atomic."
)
NOT_FINISHED: Final = "started, not finished"
"""The error of a dead letter whose at-most-once handler is running, or was lost."""


class Settlement:
    """What a pass has handled, parked and settled but not yet written.

    Attributes:
        read_at: when the pass read its messages, by the monotonic clock.
        moved: messages that left the outbox so far, or were parked.
    """

    def __init__(
        self, engine: Engine, leases: Leases, limits: Limits, *, synchronous: bool
    ) -> None:
        self.read_at = monotonic()
        self.moved = 0
        self._engine = engine
        self._leases = leases
        self._longest = limits.longest_unacknowledged_s
        self._synchronous = synchronous
        self._clear()

    def _clear(self) -> None:
        self._due = inf
        self._ids: list[int] = []
        # By category, of each handler call the seconds that its oldest message had been due for.
        self._ages: defaultdict[int, list[float]] = defaultdict(list)
        self._parked_ids: list[int] = []
        self._failure_ids: set[int] = set()
        self._parks: dict[Park, list[Message]] = {}
        self._beyond: Counter[int] = Counter()
        self._retired: Counter[int] = Counter()

    def begin(self, now: float) -> None:
        """Note that a handler begins, which a crash would repeat."""
        if self._due == inf:
            self._due = now + self._longest

    def handled(self, message: Message, group: Group | None) -> None:
        """Gather a message whose handler returned, and what it supersedes."""
        if group is None:
            self._ids.append(message.id)
            self._ages[message.category].append(message.age)
        else:
            self._ids += group.ids
            self._ages[message.category].append(group.age)
            self._beyond[message.category] += len(group.ids) - 1

    def take(self, message: Message, ids: Sequence[int]) -> None:
        """Gather messages that are not called, since a newer one replaces them."""
        self._ids += ids
        self._beyond[message.category] += len(ids)
        self.begin(monotonic())

    def acknowledged(self, group: Group, captured: Sequence[int]) -> None:
        """Count messages that left with their handler's own transaction."""
        self._ages[group.newest.category].append(group.age)
        self._beyond[group.newest.category] += len(captured) - 1
        self.begin(monotonic())

    def drop(self, category: int, ids: Sequence[int]) -> None:
        """Gather messages of a retired category, which nothing handles."""
        self._ids += ids
        self._retired[category] += len(ids)
        self.begin(monotonic())

    def also_parked(self, ids: Iterable[int]) -> None:
        """Gather captured messages that were parked when they were read."""
        # Deleted from both tables: they may have been brought back since.
        self._parked_ids += ids

    def forget(self, failures: Iterable[FailureRow]) -> None:
        """Gather failures that are settled."""
        rows = list(failures)
        self._failure_ids.update(each.id for each in rows)
        log_recovered(rows)

    def park(self, message: Message, answer: Park) -> None:
        """Gather a message that moves to the parked table."""
        self._parks.setdefault(answer, []).append(message)

    def is_full(self, most: int, now: float) -> bool:
        """Say whether to acknowledge: at ``most`` messages, or by the clock."""
        # In a suspect shard after each message, so that the mark names what runs (rule 8).
        return len(self._ids) >= most or now > self._due or self._leases.marked is not None

    def flush(self) -> None:
        """Acknowledge now; in a suspect shard the mark goes with it."""
        statements, params = self._acknowledgement()
        self._send(statements, params, by_id=self._leases.marked is None)

    def finish(self, keys: Sequence[ShardKey]) -> None:
        """Acknowledge what is left and give the shards back, in one transaction."""
        # The mark goes with its lease; what is not given back has a failure that could not be
        # recorded, of which the mark is the evidence (rule 8).
        self._leases.marked = None
        statements, params = self._acknowledgement()
        releasing, more = self._leases.releasing(list(keys))
        self._send([*statements, *releasing], {**params, **more})

    def send_with(self, statements: Sequence[str], params: dict[str, Any]) -> None:
        """Acknowledge durably, together with statements that record a failure."""
        own, own_params = self._acknowledgement()
        try:
            self._send([*own, *statements], {**own_params, **params}, relaxed=False)
        except (DataError, UnicodeError):
            # Of a text that this database cannot store: a failure that is not recorded would be
            # tried again at once, for ever.
            given = {name: NO_TEXT for name in _TEXTS if params.get(name)}
            self._send([*own, *statements], {**own_params, **params, **given}, relaxed=False)

    def in_transaction(
        self, key: ShardKey, group: Group, captured: Sequence[int], call: Callable[[], None]
    ) -> bool:
        """Run and acknowledge an atomic handler; False: the shard was lost."""
        engine = self._engine
        parked = [each for each in captured if each not in group.ids]
        fence = {"token": self._leases.token, **engine.keys([key])}
        try:
            with transaction.atomic(using=engine.alias):
                with engine_cursor(engine.connection) as cursor:
                    # Begins the transaction, which else begins with the handler's first statement.
                    cursor.execute("SELECT now()")
                    began = cursor.fetchone()
                    call()
                    # Locked after the handler, so that the renewal is not blocked while it runs.
                    cursor.execute(engine.sql("fence"), fence)
                    owned = cursor.fetchone()
                    if owned not in (None, began):
                        raise OutboxTransactionError(_ENDED.format(engine.alias))
                    cursor.execute(engine.sql("ack"), {"ids": list(captured)})
                    gone = cursor.rowcount
                    if parked:
                        cursor.execute(engine.sql("ack_parked"), {"parked_ids": parked})
                        gone += cursor.rowcount
                # Another drainer has handled it: the handler's own changes must go too.
                if owned is None or gone != len(captured):
                    raise _LostShardError  # noqa: TRY301 - the way to roll back
        except _LostShardError:
            self._leases.lost.add(key)
            return False
        self.acknowledged(group, captured)
        return True

    def move_to_dead_letters(self, message: Message) -> bool:
        """Dead-letter an at-most-once message first; False: it was gone."""
        params = park_params([message], Reason.DEAD, error=NOT_FINISHED)
        return bool(self._engine.query("park", params))

    def leave_dead_letters(self, group: Group) -> None:
        """Delete the dead letter of an at-most-once handler that returned."""
        self._engine.run([self._engine.sql("ack_parked")], {"parked_ids": [group.newest.id]})
        self._ages[group.newest.category].append(group.age)
        self.flush()

    def note_error(self, message: Message, error: BaseException) -> None:
        """Write into the dead letter of an at-most-once handler what it raised."""
        params = {"park_ids": [message.id], "park_error": described(error)}
        try:
            self._engine.query("note_error", params)
        except (DataError, UnicodeError):
            self._engine.query("note_error", params | {"park_error": NO_TEXT})

    def _acknowledgement(self) -> tuple[list[str], dict[str, Any]]:
        """Return the statements for what is gathered, and their parameters."""
        statements: list[str] = []
        params: dict[str, Any] = {}
        for name, param, ids in (
            ("ack", "ids", self._ids),
            ("ack_parked", "parked_ids", self._parked_ids),
            ("forget_failures", "failure_ids", self._failure_ids),
        ):
            if ids:
                statements.append(self._engine.sql(name))
                # In id order, so that drainers never deadlock with one another (rule 6).
                params[param] = int_array(sorted(ids))
        marked = self._leases.marked
        if marked is not None:
            statements.append(self._engine.sql("mark"))
            params |= {"handling": None, "token": self._leases.token}
            params |= self._engine.keys([marked])
        return statements, params

    def _send(
        self,
        statements: Sequence[str],
        params: dict[str, Any],
        *,
        relaxed: bool = True,
        by_id: bool = False,
    ) -> None:
        # First: the acknowledgement deletes the older messages of what is parked.
        self._move_parked()
        if statements:
            ids = sorted(self._ids) if hooks.active.before_ack or hooks.active.after_ack else []
            for seam in hooks.active.before_ack:
                seam(ids)
            # Relaxed, it does not wait for the disk: what a crash forgets is handled again, not lost (rule 2).
            self._engine.run(statements, params, relaxed=relaxed, by_id=by_id)
            for seam in hooks.active.after_ack:
                seam(ids)
        self._leases.marked = None
        self._tell()
        self._clear()

    def _move_parked(self) -> None:
        # Durably, unlike acknowledgements: a parked row that is lost is a lost message (rule 2).
        for park, messages in self._parks.items():
            params = park_params(messages, park.reason, delay=park.delay, error=park.note)
            self._engine.run([self._engine.sql("park")], params)
            self.moved += len(messages)
            counts = Counter(message.category for message in messages)
            label = self._engine.tables.label
            hooks.tell(hooks.active.parked, hooks.Parked(label, park.reason.value, counts))
            if park.reason is Reason.UNKNOWN:
                for category in counts:
                    text = "Parked as unknown in %s: the running code has no receiver for %s"
                    log_limited(
                        _LOG, logging.ERROR, (label, category), text, label, category_name(category)
                    )
        self._parks = {}

    def _tell(self) -> None:
        calls = sum(map(len, self._ages.values()))
        count = calls + sum(self._beyond.values()) + sum(self._retired.values())
        self.moved += count
        if count and hooks.active.handled:
            hooks.tell(hooks.active.handled, self._fact())

    def _fact(self) -> hooks.Handled:
        calls = {category: len(own) for category, own in self._ages.items()}
        waited = monotonic() - self.read_at
        return hooks.Handled(
            outbox=self._engine.tables.label,
            synchronous=self._synchronous,
            calls=calls,
            messages=dict(Counter(calls) + self._beyond),
            lag={
                category: hooks.Spread(
                    len(own), max(0.0, sum(own) + waited * len(own)), max(0.0, max(own) + waited)
                )
                for category, own in self._ages.items()
            },
            retired=dict(self._retired),
        )


class _LostShardError(Exception):
    """Rolls back an atomic handler whose shard or message was lost."""
