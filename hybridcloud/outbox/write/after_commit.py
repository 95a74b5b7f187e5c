"""Knows at commit which messages were written.

Django drops a commit hook when a savepoint around its registration rolls back.
So each INSERT leaves a mark among the hooks, and behind the marks stands one
coordinator, which acts for those marks that were still there.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from hybridcloud import hooks
from hybridcloud.conf import settings
from hybridcloud.registry import Slot
from silos.guard import is_testcase_transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.mixins import ProducingModel

_LOG = logging.getLogger(__name__)


class WrittenRow(NamedTuple):
    """One message that may run at once.

    Attributes:
        id: its id.
        shard: its shard.
        category: its category's number.
        object_identifier: its object.
    """

    id: int
    shard: ShardKey
    category: int
    object_identifier: int


class Batch(NamedTuple):
    """The messages of one INSERT.

    Attributes:
        outbox: the outbox model.
        counts: messages by category, delayed ones too.
        flushed: those that are to be flushed after the commit.
        unseen: whether triggers wrote messages, whose ids nobody knows.
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


class _Commit:
    """What the marks and coordinators of one transaction share."""

    __slots__ = ("alias", "latest", "ready")

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.ready: list[Batch] = []
        self.latest: _Coordinator | None = None


class _Mark:
    """A hook that says: what was inserted here was committed."""

    __slots__ = ("batches", "commit")

    def __init__(self, commit: _Commit, batch: Batch) -> None:
        self.commit = commit
        self.batches = [batch]

    def __call__(self) -> None:
        self.commit.ready += self.batches


class _Coordinator:
    """The hook behind the marks; the last of a transaction acts."""

    __slots__ = ("commit",)

    def __init__(self, commit: _Commit) -> None:
        self.commit = commit

    def __call__(self) -> None:
        if self.commit.latest is not self or not self.commit.ready:
            return
        batches, self.commit.ready = self.commit.ready, []
        _act(self.commit.alias, batches)


def register(connection: BaseDatabaseWrapper, batch: Batch) -> None:
    """Have the transaction's coordinator act for messages, once committed."""
    # The stubs of Django's list know no third item.
    queue: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    last = queue[-1][1] if queue else None
    # Within one block one mark is enough, but in a test case, which cuts the queue as it likes.
    if isinstance(last, _Coordinator) and len(queue) > 1:
        near, mark, _ = queue[-2]
        if (
            isinstance(mark, _Mark)
            and near == savepoints
            and not is_testcase_transaction(connection)
        ):
            mark.batches.append(batch)
            return
    commit = _commit_in(queue) or _Commit(connection.alias)
    commit.latest = _Coordinator(commit)
    queue.append((savepoints, _Mark(commit, batch), False))
    # Of no savepoint: it must outlive those that roll back, and acts for what is left.
    queue.append((set(), commit.latest, False))


def announce(connection: BaseDatabaseWrapper, batch: Batch) -> None:
    """Have the coordinator act at the commit; at once in autocommit."""
    if connection.in_atomic_block or not connection.get_autocommit():
        register(connection, batch)
        return
    _act(connection.alias, [batch])


def _act(alias: str, batches: Sequence[Batch]) -> None:
    """Tell of committed messages, and have them delivered.

    But for those that wait for the tick.
    """
    if hooks.active.saved:
        counts: dict[type[OutboxTable], Counter[int]] = {}
        for batch in batches:
            counts.setdefault(batch.outbox, Counter()).update(batch.counts)
        for outbox, own in counts.items():
            if own:
                hooks.tell(hooks.active.saved, hooks.Saved(outbox._meta.label, dict(own)))
    awaited = [batch for batch in batches if batch.flushed or batch.unseen]
    if awaited and settings().flush != "cron":
        on_committed(alias, awaited)


def announce_unseen(model: type[ProducingModel], using: str) -> None:
    """Have a drainer woken for messages that triggers wrote.

    Their ids are not known here.
    """
    announce(connections[using], Batch(model.outbox_model(), Counter(), (), unseen=True))


def _commit_in(queue: Sequence[tuple[Any, Any, bool]]) -> _Commit | None:
    for _, hook, _ in reversed(queue):
        if isinstance(hook, _Coordinator):
            return hook.commit
    return None
