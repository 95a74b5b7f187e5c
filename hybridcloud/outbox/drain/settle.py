"""Gathers what a pass will tell the database: without it each message would cost a round trip of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hybridcloud import hooks
from hybridcloud.outbox.drain.coalesce import CATEGORY, ID
from hybridcloud.outbox.store.session import int_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridcloud.outbox.drain.coalesce import Group, Message
    from hybridcloud.outbox.drain.lease import Leases
    from hybridcloud.outbox.store.session import Engine, Key

LONGEST_UNACKNOWLEDGED: Final = 0.25
"""Seconds after which handled messages are acknowledged, however few: what a crash may repeat."""


class Batch:
    """Handled, parked and settled messages that the database does not know of yet.

    Attributes:
        read_at: when the pass read its messages, by the monotonic clock.
        moved: messages that left the outbox so far, or failed.
        due: when what is gathered must be acknowledged, by the monotonic clock.
        ids: messages that may leave the outbox; new at each acknowledgement.
        ages: by category, of each handler call the seconds that its oldest
            message had been due for when it was read; new at each acknowledgement.
    """

    def __init__(self, engine: Engine, leases: Leases, *, synchronous: bool) -> None:
        self.read_at = monotonic()
        self.moved = 0
        self._engine = engine
        self._leases = leases
        self._synchronous = synchronous
        self._clear()

    def _clear(self) -> None:
        self.due = inf
        self.ids: list[int] = []
        self.ages: defaultdict[int, list[float]] = defaultdict(list)
        self._parked_ids: list[int] = []
        self._failure_ids: list[int] = []
        self._parks: dict[tuple[str, float | None, str | None], list[Message]] = {}
        self._beyond: dict[int, int] = {}
        self._retired: dict[int, int] = {}

    def take(self, category: int, ids: Sequence[int], age: float, *, calls: int) -> None:
        """Gather messages whose handler returned, or that a newer one supersedes."""
        self.ids += ids
        self.count(category, len(ids), age, calls=calls)

    def count(self, category: int, messages: int, age: float, *, calls: int) -> None:
        """Count messages that are acknowledged already."""
        if calls:
            self.ages[category].append(age)
        _add(self._beyond, category, messages - calls)
        self.begin(monotonic())

    def supersede(self, group: Group) -> float:
        """Gather what the newest message of a group supersedes, and not itself; return the group's age."""
        older = group.ids[:-1]
        self.ids += older
        _add(self._beyond, group.newest[CATEGORY], len(older))
        return group.age

    def begin(self, now: float) -> None:
        """Note that a handler begins: so long ago is then what a crash would repeat."""
        if self.due == inf:
            self.due = now + LONGEST_UNACKNOWLEDGED

    def drop_retired(self, category: int, ids: Sequence[int]) -> None:
        """Gather messages of a retired category, which nothing handles."""
        self.ids += ids
        _add(self._retired, category, len(ids))
        self.begin(monotonic())

    def also_parked(self, ids: Iterable[int]) -> None:
        """Remember that captured messages are in the parked table, or were when they were read."""
        self._parked_ids += ids

    def forget(self, failures: Iterable[tuple[int, int]]) -> None:
        """Gather (id, level) of failures that are settled."""
        self._failure_ids += [each for each, _ in failures]

    def park(
        self, message: Message, reason: str, *, delay: float | None = None, error: str | None = None
    ) -> None:
        """Gather a message that moves to the parked table."""
        self._parks.setdefault((reason, delay, error or None), []).append(message)

    def is_full(self, most: int, now: float) -> bool:
        """Say whether it is time to acknowledge: enough messages, or long enough ago.

        Args:
            most: messages that are acknowledged together at most.
            now: the monotonic clock.
        """
        return len(self.ids) >= most or now > self.due

    def drop(self, key: Key) -> None:
        """Let go of a shard that another drainer has taken; what was handled of it stays gathered."""
        self._leases.lost.add(key)

    def acknowledgement(self) -> tuple[list[str], dict[str, Any]]:
        """Return the statements that acknowledge what is gathered, and their parameters."""
        statements: list[str] = []
        params: dict[str, Any] = {}
        if self.ids:
            statements.append(self._engine.sql("ack"))
            params["ids"] = int_array(sorted(self.ids))
        if self._parked_ids:
            statements.append(self._engine.sql("ack_parked"))
            params["parked_ids"] = int_array(sorted(self._parked_ids))
        if self._failure_ids:
            statements.append(self._engine.sql("forget_failures"))
            params["failure_ids"] = int_array(sorted(set(self._failure_ids)))
        return statements, params

    def flush(self, *, clear_mark: Key | None = None) -> None:
        """Acknowledge now; for a suspect shard clear the mark in the same transaction."""
        statements, params = self.acknowledgement()
        if clear_mark is not None:
            statements.append(self._engine.sql("mark"))
            params |= {
                "handling": None,
                "token": self._leases.token,
                **self._engine.keys([clear_mark]),
            }
        self._send(statements, params, by_id=clear_mark is None)

    def finish(self, keys: Sequence[Key]) -> None:
        """Acknowledge what is left and give the shards back, in one transaction."""
        statements, params = self.acknowledgement()
        releasing, more = self._leases.releasing(list(keys))
        self._send([*statements, *releasing], {**params, **more})

    def send_with(self, statements: Sequence[str], params: dict[str, Any]) -> None:
        """Acknowledge together with other statements, durably: what records a failure (rule 2)."""
        own, own_params = self.acknowledgement()
        self._send([*own, *statements], {**own_params, **params}, relaxed=False)

    def _send(
        self,
        statements: Sequence[str],
        params: dict[str, Any],
        *,
        relaxed: bool = True,
        by_id: bool = False,
    ) -> None:
        self._move_parked()
        if statements:
            ids = sorted(self.ids) if hooks.active.before_ack or hooks.active.after_ack else []
            for seam in hooks.active.before_ack:
                seam(ids)
            self._engine.run(statements, params, relaxed=relaxed, by_id=by_id)
            for seam in hooks.active.after_ack:
                seam(ids)
        self._tell()
        self._clear()

    def _move_parked(self) -> None:
        for (reason, delay, error), messages in self._parks.items():
            self._engine.run(
                [self._engine.sql("park")],
                {
                    "park_ids": [message[ID] for message in messages],
                    "reason": reason,
                    "delay": delay,
                    "park_error": error,
                },
            )
            self.moved += len(messages)
            counts = Counter(message[CATEGORY] for message in messages)
            hooks.tell(hooks.active.parked, hooks.Parked(self._engine.tables.label, reason, counts))
        self._parks = {}

    def _tell(self) -> None:
        calls = sum(map(len, self.ages.values()))
        count = calls + sum(self._beyond.values()) + sum(self._retired.values())
        self.moved += count
        if count and hooks.active.handled:
            hooks.tell(hooks.active.handled, self._fact())

    def _fact(self) -> hooks.Handled:
        calls = {category: len(own) for category, own in self.ages.items()}
        messages = dict(calls)
        for category, count in self._beyond.items():
            _add(messages, category, count)
        waited = monotonic() - self.read_at
        return hooks.Handled(
            outbox=self._engine.tables.label,
            synchronous=self._synchronous,
            calls=calls,
            messages=messages,
            lag={
                category: hooks.Spread(
                    len(own), max(0.0, sum(own) + waited * len(own)), max(0.0, max(own) + waited)
                )
                for category, own in self.ages.items()
            },
            retired=self._retired,
        )


def _add(counts: dict[int, int], category: int, count: int) -> None:
    counts[category] = counts.get(category, 0) + count
