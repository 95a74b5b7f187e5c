"""What failed, and when it is tried again (rules 4 and 8)."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud import hooks
from hybridcloud.errors import OutboxFlushError
from hybridcloud.logs import log_limited
from hybridcloud.outbox.declare.category import category_name
from hybridcloud.outbox.declare.scope import OnFailure, scope_name
from hybridcloud.outbox.store.state import Level, Reason, backoff_s, longest_backoff_s
from hybridcloud.raised import class_name, described, summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridcloud.outbox.drain.coalesce import Message
    from hybridcloud.outbox.drain.shard import FailureRow, Shard
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.tables import OutboxTable

_LOG = logging.getLogger("hybridcloud.outbox")
_LEVELS: Final = {
    OnFailure.BLOCK_SHARD: Level.SHARD,
    OnFailure.BLOCK_CATEGORY: Level.CATEGORY,
    OnFailure.BLOCK_OBJECT: Level.OBJECT,
}


def park_params(
    messages: Sequence[Message],
    reason: Reason,
    *,
    delay: float | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """Return the parameters of the statement that parks messages."""
    ids = [message.id for message in messages]
    return {"park_ids": ids, "reason": reason, "delay": delay, "park_error": error}


class WorkerLostError(Exception):
    """The worker vanished, or was stalled past its lease, while a handler ran."""


class Setback(NamedTuple):
    """What a failure changes.

    Attributes:
        level: how much of the shard waits for the next try.
        attempts: failed attempts of what failed, this one included.
        is_dead: whether the message goes to the dead letters.
        statements: what records it.
        params: their parameters.
    """

    level: Level
    attempts: int
    is_dead: bool
    statements: list[str]
    params: dict[str, Any]

    @property
    def stops_shard(self) -> bool:
        """Whether the whole shard waits."""
        return not self.is_dead and self.level == Level.SHARD


def setback(
    engine: Engine,
    shard: Shard,
    message: Message,
    error: BaseException,
    *,
    token: int,
    dead: bool = False,
) -> Setback:
    """Return what a failure changes, by the scope's policy.

    Nothing is written yet. The lease's ``token`` fences it. ``dead``: it is not to be tried again.
    """
    policy = shard.policy
    # Messages of a coalescing object share their attempts; else each has its own (rule 4).
    attempts = shard.failures.attempts(message, coalesce=policy.coalesce) + 1
    level = _LEVELS[policy.on_failure]
    # At the attempt itself, so that a last failure never waits for a next try.
    is_dead = dead or (policy.max_attempts is not None and attempts >= policy.max_attempts)
    statements: list[str] = []
    params: dict[str, Any] = {"token": token, **engine.keys([shard.key])}
    if not is_dead:
        columns = (*engine.tables.sharding_columns, "category", "object_identifier")
        # One row for what waits: a shard, a category or an object.
        conflict = ", ".join(columns[: len(engine.tables.sharding_columns) + level])
        statements.append(engine.sql("record_failure", conflict=conflict, level=str(level.value)))
        params |= {
            "level": level.value,
            "category": message.category,
            "object": message.object_identifier,
            "message_id": message.id,
            "attempts": attempts,
            "crashed": isinstance(error, WorkerLostError),
            "delay_s": backoff_s(attempts),
            "error": summary(error),
            "traceback": described(error),
        }
    # What waits alone leaves the outbox: else each pass would read it again.
    if is_dead or level != Level.SHARD:
        statements.append(engine.sql("park"))
        reason, why = (Reason.DEAD, described(error)) if is_dead else (Reason.HELD, None)
        params |= park_params([message], reason, error=why)
    return Setback(level, attempts, is_dead, statements, params)


def tell_failed(
    engine: Engine, shard: Shard, message: Message, error: BaseException, **how: Any
) -> None:
    """Log a failure that was recorded, and tell listeners of it.

    ``how`` has ``attempts``, ``dead`` and ``synchronous``.
    """
    _log(shard, message, error, attempts=how["attempts"], dead=how["dead"])
    fact = hooks.Failed(
        outbox=engine.tables.label,
        shard=shard.key.columns(),
        scope=shard.key.scope,
        category=message.category,
        object_identifier=message.object_identifier,
        message_id=message.id,
        crashed=isinstance(error, WorkerLostError),
        error=error,
        **how,
    )
    hooks.tell(hooks.active.failed, fact)


def _log(
    shard: Shard, message: Message, error: BaseException, *, attempts: int, dead: bool
) -> None:
    """Log a failure: the first, and at each doubling of its attempts.

    Never with its payload. One line a minute for each category and class of error.
    """
    cause, about = (message.category, class_name(error), dead), _describe(shard, message)
    if isinstance(error, WorkerLostError):
        log_limited(_LOG, logging.ERROR, cause, "%s", summary(error))
    elif dead:
        text = "Dead-lettered %s, at attempt %s: %s"
        log_limited(_LOG, logging.ERROR, cause, text, about, attempts, described(error))
    elif attempts & (attempts - 1) == 0:
        text = "Handler of %s failed, attempt %s, next try in about %.0f s: %s"
        first, delay = summary(error).partition("\n")[0], longest_backoff_s(attempts)
        log_limited(_LOG, logging.WARNING, cause, text, about, attempts, delay, first)


def log_recovered(rows: Iterable[FailureRow]) -> None:
    """Log that what had failed has succeeded, one line a minute a category."""
    for row in rows:
        text = "Recovered after %s failed attempts: object %s of %s"
        about = (row.attempts, row.object_identifier, category_name(row.category))
        log_limited(_LOG, logging.INFO, ("recovered", row.category), text, *about)


def worker_lost(shard: Shard, message: Message) -> WorkerLostError:
    """Return the error for a message during whose handler the worker vanished."""
    return WorkerLostError(
        f"Worker lost while it handled {_describe(shard, message)}: its lease expired. "
        f"Look for an out-of-memory kill, a crash or a handler beyond its HANDLER_TIMEOUT."
    )


def flush_error(
    engine: Engine, shard: Shard, message: Message, error: BaseException
) -> OutboxFlushError:
    """Return the error that a drain raises: the handler's own words first."""
    return OutboxFlushError(
        f"{summary(error)} - while handling {_describe(shard, message)} "
        f"of {engine.tables.label}. Fix the handler; the message is kept.",
        outbox=_as_instance(engine, shard, message),
        cause=error,
    )


def _describe(shard: Shard, message: Message) -> str:
    return (
        f"message {message.id} ({category_name(message.category)}, object "
        f"{message.object_identifier}) of shard {scope_name(shard.key.scope)} {shard.key}"
    )


def _as_instance(engine: Engine, shard: Shard, message: Message) -> OutboxTable:
    """Return a message as an instance of its outbox model, for its columns."""
    # For an exception to carry; never saved: the message may be gone by then.
    added, due = message.dates()
    made = engine.outbox(
        category=message.category,
        object_identifier=message.object_identifier,
        payload=None if message.payload is None else json.loads(message.payload),
        scheduled_for=due,
        date_added=added,
        **dict(zip(engine.tables.sharding_columns, shard.key.columns(), strict=True)),
    )
    made.pk = message.id
    return made
