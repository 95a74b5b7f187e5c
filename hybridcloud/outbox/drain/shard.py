"""A claimed shard in a pass: its messages and what is on record of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud.outbox.declare.scope import Policy, find_scope
from hybridcloud.outbox.drain.coalesce import Group, Groups, Message, group_messages
from hybridcloud.outbox.store.state import Level, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.drain.parked import Freed
    from hybridcloud.outbox.store.key import ShardKey

_DEFAULT_POLICY: Final = Policy()
_NO_GROUPS: Final[Mapping[int, Group]] = MappingProxyType({})


def policy_of(scope: OutboxScope | None) -> Policy:
    """Return a scope's policy; the default for an unknown scope."""
    return _DEFAULT_POLICY if scope is None else scope.policy


class FailureRow(NamedTuple):
    """A failure on record, as it was read."""

    id: int
    level: int
    category: int
    object_identifier: int
    message_id: int
    attempts: int
    crashed: bool
    waiting: bool

    def is_of(self, message: Message, *, coalesce: bool) -> bool:
        """Say whether it is the message's, or its object's if that coalesces."""
        own = (self.category, self.object_identifier)
        same = own == (message.category, message.object_identifier)
        return same and (coalesce or self.message_id == message.id)


class Failures:
    """The recorded failures of one shard."""

    def __init__(self, rows: Sequence[FailureRow] = ()) -> None:
        self._rows = list(rows)
        self._waiting: set[tuple[int, ...]] = set()
        for row in rows:
            if row.waiting:
                self.hold(row.level, row.category, row.object_identifier)

    def hold(self, level: int, category: int, object_identifier: int) -> None:
        """Let the category, or the object, wait from now on."""
        if level == Level.CATEGORY:
            self._waiting.add((category,))
        elif level == Level.OBJECT:
            self._waiting.add((category, object_identifier))

    def waits_for(self, category: int, object_identifier: int) -> bool:
        """Say whether a message waits for something else's, or its own, next try."""
        return bool(self._waiting) and (
            (category,) in self._waiting or (category, object_identifier) in self._waiting
        )

    def crash_is_due(self, *, heed: bool) -> bool:
        """Say whether a group that crashed its worker may be tried again."""
        return any(row.crashed and not (heed and row.waiting) for row in self._rows)

    def attempts(self, message: Message, *, coalesce: bool) -> int:
        """Return how often this message, or its object, has failed so far."""
        own = (row.attempts for row in self._rows if row.is_of(message, coalesce=coalesce))
        return max(own, default=0)

    def settled_by(self, message: Message, *, coalesce: bool) -> list[FailureRow]:
        """Return the failures that a success of this message settles."""
        return [row for row in self._rows if row.is_of(message, coalesce=coalesce)]

    def of_the_shard(self) -> list[FailureRow]:
        """Return the failures that a clean drain of the shard settles."""
        return [row for row in self._rows if row.level == Level.SHARD]


class Shard:
    """A claimed shard: its messages and what is known of its exceptions.

    Attributes:
        touched: whether anything is parked, failed or held in it, so that each
            group must be looked at; else all of it may run.
        is_whole: whether all its messages were read, and none was left or parked.
    """

    # Of the class where most shards have none: there may be a shard for each message.
    is_whole = False
    parked: Mapping[tuple[int, int], list[tuple[int, str]]] = MappingProxyType({})
    held: AbstractSet[tuple[int, int]] = frozenset()

    def __init__(self, key: ShardKey, messages: list[Message], policy: Policy) -> None:
        self.key = key
        self.messages = messages
        self.policy = policy
        self.touched: bool = messages[0].flagged

    @cached_property
    def failures(self) -> Failures:
        """What is recorded of it; found with its messages where it is touched."""
        return Failures()

    def groups(self) -> Groups:
        """Return the messages in groups."""
        if len(self.messages) == 1:
            return self.messages, _NO_GROUPS
        return group_messages(self.messages, coalesce=self.policy.coalesce)

    def hold(self, message: Message) -> None:
        """Let what follows of the message's object wait, from now on in this pass."""
        self.held = {*self.held, (message.category, message.object_identifier)}
        self.touched = True

    def captured(self, group: Group) -> list[int]:
        """Return a group's ids, with older parked ones of its object."""
        if not (self.policy.coalesce and self.parked):
            return group.ids
        own = (group.newest.category, group.newest.object_identifier)
        # A newer one stays parked: this message does not supersede it.
        older = [each for each, _ in self.parked.get(own, ()) if each < group.newest.id]
        return older + group.ids

    def is_behind(self, message: Message) -> bool:
        """Say whether a lower id of its key may not run yet; never if coalescing."""
        if self.policy.coalesce:
            return False
        known = self.parked.get((message.category, message.object_identifier), ())
        # Nothing waits for a dead letter, nor for a category that this code does not know.
        waiting = {Reason.DELAYED, Reason.HELD}
        return any(each < message.id and reason in waiting for each, reason in known)


@dataclass(slots=True)
class Done:
    """What a pass has done.

    Attributes:
        moved: messages that left the outbox, or were tried and failed.
        failed: those that were tried and failed.
        emptied: shards of which everything was read, handled and deleted; nothing was parked.
        left: shards that had no time slice or have more, with the lowest id that may be left.
        newest_read: the newest id that it read; 0: none.
        ended_at: the last shard that had its time slice, where not all had; None: all, or none.
        freed: what its successes let go on.
    """

    moved: int = 0
    failed: int = 0
    emptied: list[ShardKey] = field(default_factory=list)
    left: dict[ShardKey, int] = field(default_factory=dict)
    newest_read: int = 0
    ended_at: ShardKey | None = None
    freed: list[Freed] = field(default_factory=list)


def shards_of(keys: Sequence[ShardKey], rows: Sequence[Any]) -> list[Shard]:
    """Make the shards of what a fetch gave."""
    shards: list[Shard] = []
    scope, policy = None, _DEFAULT_POLICY
    # By the number of the shard and the id, which come first in a message.
    for position, messages in groupby(map(Message._make, sorted(rows)), key=attrgetter("n")):
        key = keys[position - 1]
        # Keys come in order: each scope is looked up once.
        if key.scope != scope:
            scope = key.scope
            policy = policy_of(find_scope(scope))
        shards.append(Shard(key, list(messages), policy))
    return shards
