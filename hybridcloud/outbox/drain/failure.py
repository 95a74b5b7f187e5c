"""What failed, and when it is tried again: without it a failing handler would be called at every tick (rules 4, 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridcloud import hooks
from hybridcloud.errors import OutboxFlushError
from hybridcloud.outbox.declare.category import category_name
from hybridcloud.outbox.declare.scope import OnFailure, scope_name
from hybridcloud.outbox.drain.call import error_text
from hybridcloud.outbox.drain.coalesce import CATEGORY, ID, OBJECT
from hybridcloud.outbox.drain.shard import Failures
from hybridcloud.outbox.store.session import key_text

if TYPE_CHECKING:
    from hybridcloud.outbox.drain.coalesce import Group
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.drain.work import Pass
    from hybridcloud.outbox.store.session import Engine

_LEVELS = {OnFailure.BLOCK_SHARD: 0, OnFailure.BLOCK_CATEGORY: 1, OnFailure.BLOCK_OBJECT: 2}


def record_crash(run: Pass, shard: Shard, group: Group) -> bool:
    """Record that a worker was lost while it handled this group; say whether the shard goes on."""
    error = WorkerLostError(
        f"Worker lost while it handled {_describe(shard, group)}: its lease expired. "
        f"Look for an out-of-memory kill, a crash or a handler beyond its HANDLER_TIMEOUT."
    )
    return record_failure(run, shard, group, error, crashed=True)


class WorkerLostError(Exception):
    """The worker vanished, or was stalled past its lease, while a handler ran."""


def record_failure(
    run: Pass,
    shard: Shard,
    group: Group,
    error: BaseException,
    *,
    crashed: bool = False,
    dead: bool = False,
) -> bool:
    """Record a failure by the scope's policy, durably, with what was handled before it.

    Returns:
        Whether the shard goes on: not when it waits as a whole.

    Raises:
        OutboxFlushError: where the caller of the drain wants to be told.
    """
    engine, policy, message = run.engine, shard.policy, group.newest
    shard.is_whole = False
    if not run.leases.owns(shard.key):
        run.batch.drop(shard.key)
        return False
    category, object_identifier, message_id = message[CATEGORY], message[OBJECT], message[ID]
    what = (category, object_identifier, message_id)
    attempts = shard.failures.attempts(*what, policy) + 1
    level = _LEVELS[policy.on_failure]
    dead = dead or (policy.max_attempts is not None and attempts >= policy.max_attempts)
    older = [each for each in run.captured(shard, group) if each != message_id]
    if older:
        # A poisoned object costs one row: only the newest is tried again.
        run.take(shard, group, older, calls=0)
    if dead:
        run.batch.forget(shard.failures.settled_by(*what, coalesce=policy.coalesce))
        run.freed_by(shard, *what)
        statements, params = _burying(engine, message_id, error)
    else:
        statements, params = _recording(engine, level, what, error)
        params |= {"attempts": attempts, "crashed": crashed}
    waits = not dead and level == Failures.SHARD
    if waits:
        releasing, more = run.leases.releasing([shard.key])
        statements += releasing
        params |= more
    elif run.leases.suspect:
        statements.append(engine.sql("mark"))
        params["handling"] = None
    params |= {**engine.keys([shard.key]), "token": run.leases.token}
    run.batch.send_with(statements, params)
    run.moved += 1
    if not dead:
        shard.failures.hold(level, category, object_identifier)
        shard.hold(category, object_identifier)
    _tell(run, shard, group, error, attempts=attempts, crashed=crashed, dead=dead)
    return not waits


def _recording(
    engine: Engine, level: int, what: tuple[int, int, int], error: BaseException
) -> tuple[list[str], dict[str, Any]]:
    """Return what records a failure and, below the level of the shard, parks what failed."""
    category, object_identifier, message_id = what
    columns = (*engine.tables.sharding_columns, "category", "object_identifier")
    conflict = ", ".join(columns[: len(engine.tables.sharding_columns) + level])
    statements = [engine.sql("record_failure", conflict=conflict, level=str(level))]
    params: dict[str, Any] = {
        "level": level,
        "category": category,
        "object": object_identifier,
        "message_id": message_id,
        "error": f"{type(error).__name__}: {error}"[:2000].replace("\x00", ""),
        "traceback": error_text(error),
    }
    if level != Failures.SHARD:
        statements.append(engine.sql("park"))
        params |= {"park_ids": [message_id], "reason": "held", "delay": None, "park_error": None}
    return statements, params


def _burying(
    engine: Engine, message_id: int, error: BaseException
) -> tuple[list[str], dict[str, Any]]:
    """Return what moves a message to the dead letters."""
    params = {
        "park_ids": [message_id],
        "reason": "dead",
        "delay": None,
        "park_error": error_text(error),
    }
    return [engine.sql("park")], params


def tell_lost(run: Pass, shard: Shard, group: Group, error: BaseException) -> None:
    """Tell of a message of an at-most-once scope that failed: it is a dead letter already."""
    run.moved += 1
    _tell(run, shard, group, error, attempts=1, crashed=False, dead=True)


def _tell(
    run: Pass,
    shard: Shard,
    group: Group,
    error: BaseException,
    *,
    attempts: int,
    crashed: bool,
    dead: bool,
) -> None:
    message = group.newest
    fact = hooks.Failed(
        outbox=run.engine.tables.label,
        shard=shard.key,
        scope=shard.scope_number,
        category=message[CATEGORY],
        object_identifier=message[OBJECT],
        message_id=message[ID],
        attempts=attempts,
        crashed=crashed,
        dead=dead,
        error=error,
        synchronous=run.synchronous,
    )
    hooks.tell(hooks.active.failed, fact)
    if run.raise_failures:
        raise flush_error(run, shard, group, error) from error


def _describe(shard: Shard, group: Group) -> str:
    message = group.newest
    return (
        f"message {message[ID]} ({category_name(message[CATEGORY])}, object {message[OBJECT]}) "
        f"of shard {scope_name(shard.scope_number)} {key_text(shard.key)}"
    )


def flush_error(run: Pass, shard: Shard, group: Group, error: BaseException) -> OutboxFlushError:
    """Make the error that a drain raises: the handler's own words first."""
    return OutboxFlushError(
        f"{type(error).__name__}: {error} - while handling {_describe(shard, group)} "
        f"of {run.engine.tables.label}. Fix the handler; the message is kept.",
        outbox=run.as_instance(shard, group.newest),
        cause=error,
    )
