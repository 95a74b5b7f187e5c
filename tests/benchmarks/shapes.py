"""The shapes in which messages wait; an engine may be fast in one only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Shape:
    """How many messages wait in how many shards, about how many objects.

    Attributes:
        name: such as ``100x100``.
        shards: how many shards.
        messages: messages in each shard.
        objects: objects in each shard; if fewer than messages, several are about one object.
    """

    name: str
    shards: int
    messages: int
    objects: int

    @property
    def count(self) -> int:
        """The number of all messages."""
        return self.shards * self.messages

    @property
    def calls(self) -> int:
        """Handler calls of an engine that coalesces all of a shard."""
        return self.shards * self.objects

    def calls_in_passes_of(self, messages: int) -> int:
        """Handler calls where a shard is read in parts of so many messages."""
        parts = -(-self.messages // messages)
        return self.shards * max(self.objects, parts * min(self.objects, messages))

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield (shard, object) in the order of writing, shards interleaved."""
        for number in range(self.messages):
            for shard in range(1, self.shards + 1):
                yield shard, number % self.objects + 1

    def at_most(self, count: int) -> Shape:
        """Return the same shape with at most this many messages."""
        if self.count <= count:
            return self
        if self.messages == 1:
            return replace(self, shards=count)
        if self.shards == 1:
            return replace(self, messages=count, objects=min(self.objects, count))
        messages = max(1, count // self.shards)
        if messages * self.shards > count or messages < self.messages // 10:
            # Both sides shrink: 100 shards of 10 are a different shape from 32 of 32.
            side = max(1, int(count**0.5))
            return replace(self, shards=side, messages=side, objects=min(self.objects, side))
        return replace(self, messages=messages, objects=min(self.objects, messages))


MANY_SHARDS = Shape("10000x1", 10_000, 1, 1)
HOT_SHARD = Shape("1x10000", 1, 10_000, 10_000)
REPEATED = Shape("1x10000 on 10", 1, 10_000, 10)
SQUARE = Shape("100x100", 100, 100, 100)
ALL = (MANY_SHARDS, HOT_SHARD, REPEATED, SQUARE)
