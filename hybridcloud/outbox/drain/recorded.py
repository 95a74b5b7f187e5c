"""The failures that a shard has on record: without them a pass could not tell what waits, or how often it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.declare.scope import Policy


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
