"""A claimed shard in a pass: without it the messages and their exceptions would be looked up apart."""

from __future__ import annotations

from functools import cached_property
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.drain.call import policy_of
from hybridcloud.outbox.drain.coalesce import (
    CATEGORY,
    FLAGGED,
    ID,
    OBJECT,
    Group,
    Groups,
    Message,
    N,
    group_messages,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hybridcloud.outbox.declare.scope import Policy
    from hybridcloud.outbox.store.session import Key


class Failures:
    """The recorded failures of one shard.

    Args:
        rows: (id, level, category, object, message id, attempts, crashed, waiting).
    """

    SHARD, CATEGORY, OBJECT = range(3)

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rows = list(rows)
        self._waiting: set[tuple[int, ...]] = set()
        for _, level, category, object_identifier, *_, waiting in rows:
            if waiting:
                self.hold(level, category, object_identifier)

    def hold(self, level: int, category: int, object_identifier: int) -> None:
        """Let the category, or the object, wait from now on."""
        if level == self.CATEGORY:
            self._waiting.add((category,))
        elif level == self.OBJECT:
            self._waiting.add((category, object_identifier))

    def waits_for(self, category: int, object_identifier: int) -> bool:
        """Say whether a message waits for something else's, or its own, next try."""
        return bool(self._waiting) and (
            (category,) in self._waiting or (category, object_identifier) in self._waiting
        )

    def crash_is_due(self, *, heed: bool) -> bool:
        """Say whether a group that crashed its worker may be tried again."""
        return any(crashed and not (heed and waiting) for *_, crashed, waiting in self._rows)

    def attempts(
        self, category: int, object_identifier: int, message_id: int, policy: Policy
    ) -> int:
        """Return how often this has failed so far; something else's failures don't count."""
        return max(
            (
                row[5]
                for row in self._rows
                if _is_of(row, category, object_identifier, message_id, coalesce=policy.coalesce)
            ),
            default=0,
        )

    def settled_by(
        self, category: int, object_identifier: int, message_id: int, *, coalesce: bool
    ) -> list[tuple[int, int]]:
        """Return (id, level) of the failures that a success of this message settles."""
        if not self._rows:
            return []
        return [
            (row[0], row[1])
            for row in self._rows
            if _is_of(row, category, object_identifier, message_id, coalesce=coalesce)
        ]

    def of_the_shard(self) -> list[tuple[int, int]]:
        """Return (id, level) of the failures at shard level: settled when the shard drains cleanly."""
        return [(row[0], row[1]) for row in self._rows if row[1] == self.SHARD]


def _is_of(
    row: tuple[Any, ...],
    category: int,
    object_identifier: int,
    message_id: int,
    *,
    coalesce: bool,
) -> bool:
    same_key = row[2] == category and row[3] == object_identifier
    return same_key and (coalesce or row[4] == message_id)


class Shard:
    """A claimed shard in a pass: its messages and what is known of its exceptions.

    Attributes:
        touched: whether anything is parked, failed or held in it, so that each
            group must be looked at; else all of it may run.
        newer: what supersedes messages that were read, by category and object:
            the newest message and all ids.
        is_whole: whether all its messages were read, and none was left or parked.
    """

    # Of the class where most shards have none: there may be a shard for each message.
    is_whole = False
    parked: Mapping[tuple[int, int], list[tuple[int, str]]] = MappingProxyType({})
    held: AbstractSet[tuple[int, int]] = frozenset()
    newer: Mapping[tuple[int, int], tuple[Message, list[int]]] = MappingProxyType({})

    def __init__(self, key: Key, messages: list[Message], policy: Policy) -> None:
        self.key = key
        self.messages = messages
        self.policy = policy
        self.touched: bool = messages[0][FLAGGED]

    @property
    def scope_number(self) -> int:
        """The number of the shard's scope."""
        number: int = self.key[-2]
        return number

    @property
    def identifier(self) -> int:
        """The shard's identifier."""
        identifier: int = self.key[-1]
        return identifier

    @property
    def cell(self) -> str | None:
        """The target cell; None in a cell's own table."""
        return self.key[0] if len(self.key) > 2 else None

    @cached_property
    def failures(self) -> Failures:
        """What is recorded of it; found with its messages where it is touched."""
        return Failures([])

    def groups(self) -> Groups:
        """Return the messages grouped as the scope wants it."""
        return group_messages(self.messages, coalesce=self.policy.coalesce)

    def hold(self, category: int, object_identifier: int) -> None:
        """Let what follows of the object wait, from now on in this pass."""
        self.held = {*self.held, (category, object_identifier)}
        self.touched = True

    def older_parked(self, group: Group) -> list[int]:
        """Return ids of older parked messages of the group's object, which go with it where the scope coalesces."""
        if not (self.policy.coalesce and self.parked):
            return []
        known = self.parked.get((group.newest[CATEGORY], group.newest[OBJECT]), ())
        return [each for each, _ in known if each < group.newest[ID]]

    def is_behind(self, message: Message) -> bool:
        """Say whether a lower id of the message's key may not run yet; where the scope coalesces none is."""
        if self.policy.coalesce:
            return False
        known = self.parked.get((message[CATEGORY], message[OBJECT]), ())
        return any(each < message[ID] and reason in {"delayed", "held"} for each, reason in known)


def shards_of(keys: Sequence[Key], rows: Sequence[Any]) -> list[Shard]:
    """Make the shards of what a fetch gave."""
    shards: list[Shard] = []
    scope, policy = None, policy_of(None)
    # By the number of the shard and the id, which come first in a message.
    for position, messages in groupby(sorted(rows), key=itemgetter(N)):
        key = keys[position - 1]
        if key[-2] != scope:
            scope = key[-2]
            policy = policy_of(find_scope(scope))
        shards.append(Shard(key, list(messages), policy))
    return shards
