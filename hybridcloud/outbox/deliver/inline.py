"""Drains at somebody's word: without it a test, an upgrade or the loop of a user's own could only wait for tasks."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError, router

from hybridcloud import hooks
from hybridcloud.conf import settings
from hybridcloud.errors import OutboxDatabaseError
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.loop import BUDGET, Drainer
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.drain.read import read_all
from hybridcloud.outbox.drain.work import Pass
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.session import NO_BOUND, Engine, Key

if TYPE_CHECKING:
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

_FIRST_POLL: Final = 0.002
_LONGEST_POLL: Final = 0.05


def drain_outbox(
    outbox: type[OutboxTable],
    *,
    alias: str,
    ignore_backoff: bool = False,
    include_delayed: bool = False,
    raise_failures: bool = False,
) -> int:
    """Drain each shard of an outbox table once; for tests and for upgrades.

    Args:
        outbox: the outbox model.
        alias: the database.
        ignore_backoff: also what waits for its next try.
        include_delayed: also what is delayed and not due.
        raise_failures: raise the first failure, after it was recorded.

    Returns:
        How many messages left the outbox or failed; 0: nothing may run.

    Raises:
        OutboxFlushError: a handler failed and ``raise_failures`` is set.
    """
    drainer = Drainer(outbox, alias, heed_backoff=not ignore_backoff, raise_failures=raise_failures)
    bring_back(
        drainer.engine,
        kill_switches.current(),
        heed_backoff=not ignore_backoff,
        include_delayed=include_delayed,
    )
    return drainer.once()


def drain_shard(message: OutboxTable, *, flush_all: bool, leases: Leases | None) -> None:
    """Drain the shard of a message; see `OutboxTable.drain_shard`."""
    outbox, key = type(message), message.shard_key()
    alias = message._state.db or router.db_for_write(outbox)
    engine = Engine(outbox, alias)
    engine.refuse_transaction(f"a drain of shard {key}")
    try:
        _drain_known(engine, key, flush_all=flush_all, leases=leases)
    except DatabaseError as exc:
        if isinstance(exc, OutboxDatabaseError):
            raise
        raise OutboxDatabaseError(
            f"{type(exc).__name__}: {exc} - in the engine's own SQL while shard {key} of "
            f"{engine.tables.label} was drained on {alias!r}. Its messages are kept."
        ) from exc


def _drain_known(
    engine: Engine, key: Key, *, flush_all: bool, leases: Leases | None = None
) -> None:
    deadline = monotonic() + BUDGET
    bound = NO_BOUND
    if not flush_all:
        bound = engine.query("newest", engine.keys([key]))[0][0] or 0
    while monotonic() < deadline:
        switches = kill_switches.current()
        if switches.stops(key):
            return
        leases = leases or claim_one(engine, key, switches)
        if leases is None:
            return
        run = Pass(
            engine,
            leases,
            switches,
            read=read_all(bound),
            raise_failures=True,
            heed_backoff=False,
            turn=max(0.0, deadline - monotonic()),
        )
        leases = None
        if not run.run():
            return


def claim_one(engine: Engine, key: Key, switches: Switches) -> Leases | None:
    """Claim one shard, whatever its backoff; wait at most ``FLUSH_WAIT`` for another drainer."""
    deadline = monotonic() + settings().flush_wait
    pause = _FIRST_POLL
    while True:
        leases = Leases(engine)
        if leases.claim_known([key], heed_backoff=False) or leases.claim_suspect(
            switches=switches, only=[key], heed_backoff=False
        ):
            return leases
        if monotonic() + pause > deadline or engine.in_testcase:
            return None
        for seam in hooks.active.before_wait:
            seam()
        sleep(pause)
        pause = min(pause * 1.7, _LONGEST_POLL)
