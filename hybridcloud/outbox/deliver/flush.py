"""What happens to messages after their commit.

A sync flush handles the groups of its own messages, not the backlog of others,
and never turns a saved change into an error for its caller.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import DatabaseError

from hybridcloud import hooks
from hybridcloud.causation import is_inside
from hybridcloud.conf import settings
from hybridcloud.errors import OutboxError
from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.deliver.kick import kick
from hybridcloud.outbox.drain.gate import is_shard_stopped
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.shard import policy_of
from hybridcloud.outbox.drain.work import Work
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridcloud.conf import FlushMode
    from hybridcloud.outbox.drain.read import Reader
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.after_commit import Batch, WrittenRow

_LOG = logging.getLogger(__name__)
MOST_AT_ONCE: Final = 1000
"""A commit that wrote more messages than this wakes a drainer instead of handling them itself."""
MOST_AHEAD: Final = 100
"""In scopes that do not coalesce: a flush kicks when more than so many messages are before its own."""

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
_GROWTH: Final = 1.7

_raise_failures: ContextVar[bool] = ContextVar("hybridcloud_flush_raises", default=False)


@contextmanager
def raising_failures() -> Iterator[None]:
    """Let sync flushes raise what they would capture; for tests."""
    token = _raise_failures.set(True)
    try:
        yield
    finally:
        _raise_failures.reset(token)


class Written(NamedTuple):
    """What is to be flushed of one commit and outbox table, by ids."""

    outbox: type[OutboxTable]
    alias: str
    rows: tuple[WrittenRow, ...]


def deliver(alias: str, batches: Sequence[Batch]) -> None:
    """Flush what was committed, or wake a drainer; fills `on_committed`.

    Called once for each commit. A failure is captured, the shard backs off, and the tick
    takes over; it never reaches the caller, whose change is saved.

    Raises:
        OutboxFlushError: a handler failed, inside `raising_failures` only.
    """
    by_outbox: dict[type[OutboxTable], list[Batch]] = {}
    for batch in batches:
        by_outbox.setdefault(batch.outbox, []).append(batch)
    default = settings().flush
    for outbox, own in by_outbox.items():
        by_mode: dict[FlushMode, list[WrittenRow]] = {}
        for row in sorted(row for batch in own for row in batch.flushed):
            by_mode.setdefault(row.mode or default, []).append(row)
        try:
            for mode, rows in by_mode.items():
                flush_written(Written(outbox, alias, tuple(rows)), mode)
        except Exception as exc:
            # In a test that asked for it.
            if _raise_failures.get() and isinstance(exc, DatabaseError | OutboxError):
                raise
            tags = {"outbox": outbox._meta.label}
            hooks.tell(hooks.active.captured, hooks.Captured(exc, "flush", tags))
            _LOG.exception("Flush of %s failed; the tick takes over", outbox._meta.label)
        if default != "cron" and any(batch.unseen for batch in own):
            kick(outbox, alias)


def flush_written(written: Written, mode: FlushMode) -> None:
    """Do with the committed messages of one table what their mode says."""
    if mode == "cron":
        return
    if mode == "kick" or is_inside() or len(written.rows) > MOST_AT_ONCE:
        kick(written.outbox, written.alias)
        return
    _Flush(written).run()


class _Flush:
    """The flush of one commit's messages of one outbox table."""

    def __init__(self, written: Written) -> None:
        self._engine = Engine(written.outbox, written.alias)
        self._own: dict[ShardKey, list[WrittenRow]] = {}
        for row in written.rows:
            self._own.setdefault(row.shard, []).append(row)
        self._switches: Switches = kill_switches.current()
        self._kick = False

    def run(self) -> None:
        self._engine.refuse_transaction("a flush")
        waiting: list[ShardKey] = []
        coalescing: list[ShardKey] = []
        for key in sorted(self._own):
            if is_shard_stopped(self._switches, key):
                continue
            if _coalesces(key):
                coalescing.append(key)
            else:
                waiting += self._claim_and_drain([key])
        if coalescing:
            waiting += self._claim_and_drain(coalescing)
        deadline = monotonic() + settings().flush_wait
        for key in waiting:
            self._wait(key, deadline)
        if self._kick:
            kick(self._engine.outbox, self._engine.alias)

    def _claim_and_drain(self, keys: Sequence[ShardKey]) -> list[ShardKey]:
        """Drain what can be claimed at once; return the shards that could not."""
        leases = Leases(self._engine)
        if len(keys) == 1 and _coalesces(keys[0]):
            # As in most flushes.
            claimed = leases.claim_and_read(keys[0], *self._read_own_groups()(keys))
        else:
            claimed = leases.claim_known(keys)
        taken = set(leases.keys)
        if claimed:
            self._drain(leases)
        return [key for key in keys if key not in taken]

    def _drain(self, leases: Leases) -> None:
        keys = list(leases.keys)
        ordered = len(keys) == 1 and not _coalesces(keys[0])
        work = Work(
            self._engine,
            leases,
            self._switches,
            read=self._read_from_head(keys[0]) if ordered else self._read_own_groups(),
            synchronous=True,
            raise_failures=_raise_failures.get(),
        )
        if ordered and self._is_far_behind(keys[0]):
            leases.release()
            self._kick = True
            return
        done = work.run()
        self._kick = self._kick or bool(done.freed)

    def _read_own_groups(self) -> Reader:
        def statement(keys: Sequence[ShardKey]) -> tuple[str, dict[str, Any]]:
            groups = {
                (row.category, row.object_identifier) for key in keys for row in self._own[key]
            }
            params = {
                "categories": [category for category, _ in groups],
                "objects": [each for _, each in groups],
                "most": 10 * MOST_AT_ONCE,
            }
            return "fetch_own_one" if len(keys) == len(groups) == 1 else "fetch_own", params

        return statement

    def _read_from_head(self, key: ShardKey) -> Reader:
        own = self._own[key]

        def statement(keys: Sequence[ShardKey]) -> tuple[str, dict[str, Any]]:  # noqa: ARG001 - a Reader
            newest = max(row.id for row in own)
            return "fetch", {"bound": newest, "most": len(own) + MOST_AHEAD}

        return statement

    def _is_far_behind(self, key: ShardKey) -> bool:
        first = min(row.id for row in self._own[key])
        params = {"first": first, "most": MOST_AHEAD + 1, **self._engine.keys([key])}
        return int(self._engine.query("before", params)[0][0]) > MOST_AHEAD

    def _wait(self, key: ShardKey, deadline: float) -> None:
        """Wait until the shard's drainer has handled this commit's messages."""
        own = [row.id for row in self._own[key]]
        params = {"ids": own, "heed": True, **self._engine.keys([key])}
        for _ in pauses(self._engine, deadline):
            left, blocked = self._engine.query("own_left", params)[0]
            if not left or blocked:
                return
            leases = Leases(self._engine)
            if leases.claim_known([key]):
                self._drain(leases)
                return
        self._kick = True


def _coalesces(key: ShardKey) -> bool:
    return policy_of(find_scope(key.scope)).coalesce


def pauses(engine: Engine, deadline: float) -> Iterator[None]:
    """Yield at once and after growing pauses, until a deadline (monotonic)."""
    # Inside a test case nobody else can end what is waited for.
    pause = _FIRST_PAUSE
    while True:
        yield
        if monotonic() + pause > deadline or engine.in_testcase:
            return
        for seam in hooks.active.before_wait:
            seam()
        sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
