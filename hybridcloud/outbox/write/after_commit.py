"""Knows at commit which messages were written.

Django drops a commit hook when a savepoint around its registration rolls back.
So each INSERT leaves a mark among the hooks, and behind the marks stands one
coordinator, which acts for those marks that were still there.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hybridcloud import hooks
from hybridcloud.conf import settings
from hybridcloud.registry import Slot
from silos.guard import is_testcase_transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.conf import FlushMode
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.tables import OutboxTable

_LOG = logging.getLogger(__name__)


type Flush = FlushMode | bool | None
"""Whether and how messages are flushed: True as the settings say, None as the context says."""
type FlushChoice = Literal["sync", "kick"] | bool
"""The same, once it was checked and the context was asked."""


def mode_of(choice: FlushChoice) -> FlushMode | None:
    """Return how messages are flushed; None: as the settings say."""
    return None if isinstance(choice, bool) else choice


class WrittenRow(NamedTuple):
    """One message that may run at once; ``mode``: None as the settings say."""

    id: int
    shard: ShardKey
    category: int
    object_identifier: int
    mode: FlushMode | None = None


class Batch(NamedTuple):
    """The messages of one INSERT.

    ``counts`` are the messages by category, delayed ones too, and ``flushed`` those to be flushed
    after the commit. ``unseen`` says that triggers wrote messages, whose ids are not known here.
    """

    outbox: type[OutboxTable]
    counts: Counter[int]
    flushed: Sequence[WrittenRow]
    unseen: bool = False


def _wait_for_the_tick(alias: str, batches: Sequence[Batch]) -> None:
    _LOG.warning(
        "Messages on %s wait for the next tick: %s batches were committed before the apps were ready",
        alias,
        len(batches),
    )


on_committed: Slot[[str, Sequence[Batch]], None] = Slot(
    "what is done with messages once they are committed", _wait_for_the_tick
)
"""Called once a transaction with the database and what is to be flushed; `flush` fills it."""


@dataclass(slots=True, eq=False)
class _Commit:
    """What the marks and coordinators of one transaction share."""

    alias: str
    ready: list[Batch] = field(default_factory=list)
    latest: _Coordinator | None = None


@dataclass(slots=True, eq=False)
class _Mark:
    """A hook that says: what was inserted here was committed."""

    commit: _Commit
    batches: list[Batch]

    def __call__(self) -> None:
        self.commit.ready += self.batches


@dataclass(slots=True, eq=False)
class _Coordinator:
    """The hook behind the marks; the last of a transaction acts."""

    commit: _Commit

    def __call__(self) -> None:
        # Once per transaction, so that a flush sees all of its messages.
        if self.commit.latest is self and self.commit.ready:
            batches, self.commit.ready = self.commit.ready, []
            _act(self.commit.alias, batches)


def register(connection: BaseDatabaseWrapper, batch: Batch) -> None:
    """Have the transaction's coordinator act for messages, once committed."""
    # The stubs of Django's list know no third item.
    queue: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    match queue[-2:]:
        case [(near, _Mark() as mark, _), (_, _Coordinator(), _)] if near == savepoints:
            # Within one block one mark is enough, but in a test case, which cuts the queue as it likes.
            if not is_testcase_transaction(connection):
                mark.batches.append(batch)
                return
    commits = (hook.commit for _, hook, _ in reversed(queue) if isinstance(hook, _Coordinator))
    commit = next(commits, None) or _Commit(connection.alias)
    commit.latest = _Coordinator(commit)
    queue.append((savepoints, _Mark(commit, [batch]), False))
    # Of no savepoint: it must outlive those that roll back, and acts for what is left.
    queue.append((set(), commit.latest, False))


def announce(connection: BaseDatabaseWrapper, batch: Batch) -> None:
    """Have the coordinator act at the commit; at once in autocommit."""
    if connection.in_atomic_block or not connection.get_autocommit():
        register(connection, batch)
    else:
        # The statement was its own transaction and is committed.
        _act(connection.alias, [batch])


def _act(alias: str, batches: Sequence[Batch]) -> None:
    """Tell of committed messages, and have those flushed that are to be."""
    if hooks.active.saved:
        counts: dict[type[OutboxTable], Counter[int]] = {}
        for batch in batches:
            counts.setdefault(batch.outbox, Counter()).update(batch.counts)
        for outbox, own in counts.items():
            # None where triggers wrote, since only the database knows how many.
            if own:
                hooks.tell(hooks.active.saved, hooks.Saved(outbox._meta.label, dict(own)))
    # In cron mode they wait for the tick.
    waits = settings().flush == "cron"
    awaited = [
        batch
        for batch in batches
        if any(row.mode or not waits for row in batch.flushed) or (batch.unseen and not waits)
    ]
    if awaited:
        on_committed(alias, awaited)
