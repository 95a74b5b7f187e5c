"""A claimed shard in a pass: without it the messages and their exceptions would be looked up apart."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hybridcloud.conf import settings
from hybridcloud.outbox.category import find_scope
from hybridcloud.outbox.coalesce import (
    CATEGORY,
    FLAGGED,
    ID,
    OBJECT,
    Group,
    Message,
    N,
    group_messages,
)
from hybridcloud.outbox.handling import policy_of
from hybridcloud.outbox.recorded import Failures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.category import Policy
    from hybridcloud.outbox.statements import Key


class Shard:
    """A claimed shard in a pass: its messages and what is known of its exceptions.

    Attributes:
        touched: whether anything is parked, failed or held in it, so that each
            group must be looked at; else all of it may run.
        newer: what supersedes messages that were read, by category and object:
            the newest message and all ids.
        is_whole: whether all its messages were read, and none was left or parked.
    """

    def __init__(self, key: Key, messages: list[Message]) -> None:
        self.key = key
        self.messages = messages
        self.failures = Failures([])
        self.parked: dict[tuple[int, int], list[tuple[int, str]]] = {}
        self.held: set[tuple[int, int]] = set()
        self.touched = bool(messages[0][FLAGGED])
        self.newer: dict[tuple[int, int], tuple[Message, list[int]]] = {}
        self.is_whole = False
        self.scope_number, self.identifier = key[-2], key[-1]
        self.cell: str | None = key[0] if len(key) > 2 else None
        self.policy: Policy = policy_of(find_scope(self.scope_number))
        self.handler_limit = self.policy.handler_timeout or settings().handler_timeout

    def groups(self) -> list[Group]:
        """Return the messages grouped as the scope wants it."""
        return group_messages(self.messages, coalesce=self.policy.coalesce)

    def hold(self, category: int, object_identifier: int) -> None:
        """Let what follows of the object wait, from now on in this pass."""
        self.held.add((category, object_identifier))
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
    ordered = sorted(rows, key=itemgetter(N))
    return [
        Shard(keys[position - 1], list(messages))
        for position, messages in groupby(ordered, key=itemgetter(N))
    ]
