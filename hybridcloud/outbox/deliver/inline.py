"""Drains in the calling process, for tests, upgrades and own loops."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from django.db import DatabaseError, router

from hybridcloud.conf import settings
from hybridcloud.errors import OutboxDatabaseError
from hybridcloud.outbox.deliver.flush import pauses
from hybridcloud.outbox.drain.gate import is_shard_stopped
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.drain.loop import Drainer
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.drain.read import read_all
from hybridcloud.outbox.drain.work import Work
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import NO_BOUND, Engine

if TYPE_CHECKING:
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable


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
    heed, switches = not ignore_backoff, kill_switches.current()
    drainer = Drainer(outbox, alias, heed_backoff=heed, raise_failures=raise_failures)
    bring_back(drainer.engine, switches, heed_backoff=heed, include_delayed=include_delayed)
    return drainer.once()


def drain_shard(
    message: OutboxTable, *, flush_all: bool, leases: Leases | None, limits: Limits = LIMITS
) -> None:
    """Drain the shard of a message; see `OutboxTable.drain_shard`."""
    outbox, key = type(message), ShardKey.of_columns(message.shard_key())
    alias = message._state.db or router.db_for_write(outbox)
    engine = Engine(outbox, alias)
    engine.refuse_transaction(f"a drain of shard {key}")
    try:
        _drain_known(engine, key, flush_all=flush_all, leases=leases, limits=limits)
    except DatabaseError as exc:
        if isinstance(exc, OutboxDatabaseError):
            raise
        raise OutboxDatabaseError(
            f"{type(exc).__name__}: {exc} - in the engine's own SQL while shard {key} of "
            f"{engine.tables.label} was drained on {alias!r}. Its messages are kept."
        ) from exc
    finally:
        # Claimed by the caller and not drained: an expired lease would count as a crash (rule 8).
        if leases is not None and leases.keys:
            with suppress(DatabaseError):
                leases.release()


def _drain_known(
    engine: Engine, key: ShardKey, *, flush_all: bool, leases: Leases | None, limits: Limits
) -> None:
    deadline = monotonic() + limits.budget_s
    # What is written after the call began is left to others, or a busy shard would never end.
    bound = NO_BOUND
    if not flush_all:
        bound = engine.query("newest", engine.keys([key]))[0][0] or 0
    while monotonic() < deadline:
        switches = kill_switches.current()
        if is_shard_stopped(switches, key):
            return
        leases = leases or claim_one(engine, key, switches)
        if leases is None:
            return
        work = Work(
            engine,
            leases,
            switches,
            limits,
            read=read_all(bound, limits=limits),
            raise_failures=True,
            heed_backoff=False,
            time_slice=max(0.0, deadline - monotonic()),
        )
        # The pass gives its leases back: the next one claims anew.
        leases = None
        if not work.run().moved:
            return


def claim_one(engine: Engine, key: ShardKey, switches: Switches) -> Leases | None:
    """Claim one shard despite its backoff; wait at most ``FLUSH_WAIT``."""
    for _ in pauses(engine, monotonic() + settings().flush_wait):
        leases = Leases(engine)
        if leases.claim_known([key], heed_backoff=False) or leases.claim_suspect(
            switches=switches, only=[key], heed_backoff=False
        ):
            return leases
    return None
