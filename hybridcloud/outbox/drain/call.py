"""Calls handlers: without it a message would be read and nobody told.

Three ways, by the scope's policy: plainly, inside a transaction with the
acknowledgement (atomic scopes), or after it (at-most-once scopes).
"""

from __future__ import annotations

import json
import traceback
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import transaction

from hybridcloud import causation, hooks
from hybridcloud.conf import settings
from hybridcloud.errors import OutboxRecursionLimitError
from hybridcloud.outbox.declare.category import category_name, find_category
from hybridcloud.outbox.declare.scope import Policy, is_retired
from hybridcloud.outbox.declare.signals import (
    RetryLater,
    process_cell_outbox,
    process_control_outbox,
)
from hybridcloud.outbox.drain.coalesce import (
    CATEGORY,
    HEADERS,
    ID,
    OBJECT,
    PAYLOAD,
    dates_of,
)
from silos import SiloMode, assume_silo
from silos.cells import all_cells
from silos.mode import get_current_silo
from silos.router import silo_aliases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.dispatch import Signal

    from hybridcloud.outbox.declare.category import OutboxCategory
    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.drain.coalesce import Group, Message
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.drain.work import Pass
    from hybridcloud.outbox.store.session import Engine

NOT_FINISHED: Final = "started, not finished"
_DEFAULT_POLICY: Final = Policy()
# What PostgreSQL makes of jsonb begins with no space: half of what json.loads does is not needed.
decode: Final = json.JSONDecoder().raw_decode


def policy_of(scope: OutboxScope | None) -> Policy:
    """Return the policy of a scope; of one that the running code does not know, the default."""
    return _DEFAULT_POLICY if scope is None else scope.policy


def signal_of(engine: Engine) -> Signal:
    """Return the signal by which an outbox table's messages are handed out."""
    is_control = engine.outbox.silo_mode is SiloMode.CONTROL
    return process_control_outbox if is_control else process_cell_outbox


def has_receiver(engine: Engine, category: int) -> bool:
    """Say whether the running code knows the category and listens to it (rule 3)."""
    member = find_category(category)
    return member is not None and signal_of(engine).has_listeners(member)


class Route(NamedTuple):
    """Where the messages of a category go.

    Attributes:
        category: the category; None: the running code does not know it.
        name: its name.
        is_retired: nothing handles it any more.
        is_open: it is known, in use, and somebody listens.
    """

    category: OutboxCategory | None
    name: str
    is_retired: bool
    is_open: bool


def route_of(engine: Engine, category: int) -> Route:
    """Look a category up: as the code is now, and who listens now."""
    retired = is_retired(category)
    is_open = not retired and has_receiver(engine, category)
    return Route(find_category(category), category_name(category), retired, is_open)


def own_silo(engine: Engine) -> AbstractContextManager[object]:
    """Enter the silo, and cell, of the outbox table: where its handlers run."""
    mode = engine.outbox.silo_mode
    if mode is SiloMode.CONTROL:
        return assume_silo(SiloMode.CONTROL)
    _, cell = silo_aliases().get(engine.alias, (mode, None))
    cell = cell or get_current_silo().cell or all_cells()[0].name
    return assume_silo(SiloMode.CELL, cell=cell)


def _inside(run: Pass, message: Message, name: str) -> causation.inside:
    if message[HEADERS] is None:
        first = (run.engine.tables.label, message[ID], name)
        return causation.inside(causation.Causation.begun(first))
    return causation.inside(causation.from_headers(json.loads(message[HEADERS])).followed_by(name))


def too_deep(message: Message) -> OutboxRecursionLimitError | None:
    """Return the error for a message at the end of too long a causal chain, else None (rule 9)."""
    if message[HEADERS] is None:
        return None
    chain = causation.from_headers(json.loads(message[HEADERS]))
    limit = settings().causation_limit
    if chain.depth < limit:
        return None
    return OutboxRecursionLimitError(
        f"Causal chain of {chain.depth} handlers, at most {limit} are allowed: "
        f"{' > '.join((*chain.chain, category_name(message[CATEGORY])))}. Break the loop: a handler "
        f"must not write what makes its own message again.",
        chain=chain.chain,
    )


def call(run: Pass, shard: Shard, message: Message) -> None:
    """Call the receivers of a message; whatever they raise comes through.

    No transaction of the engine is open, but a savepoint inside a test case,
    whose transaction a handler's database error would end.
    """
    leases, payload = run.leases, message[PAYLOAD]
    route = run.route(message[CATEGORY])
    added, due = dates_of(message)
    arguments: dict[str, Any] = {
        "payload": None if payload is None else decode(payload)[0],
        "object_identifier": message[OBJECT],
        "shard_identifier": shard.identifier,
        "shard_scope": shard.scope_number,
        "date_added": added,
        "scheduled_for": due,
        "message_id": message[ID],
    }
    if shard.cell is not None:
        arguments["cell_name"] = shard.cell
    leases.handler_timeout = shard.policy.handler_timeout
    leases.handler_since = monotonic()
    run.batch.begin(leases.handler_since)
    try:
        with _inside(run, message, route.name):
            if run.in_testcase or hooks.active.before_handler or hooks.active.after_handler:
                heard = _send_watched(run, shard, message, arguments)
            else:
                heard = run.signal.send(route.category, **arguments)
    finally:
        leases.handler_since = None
    if not heard:
        raise nobody_listens()


def nobody_listens() -> RetryLater:
    """Return the error for a receiver that was disconnected since the pass looked for it (rule 3)."""
    return RetryLater(reason="nobody listens any more")


def _send_watched(
    run: Pass, shard: Shard, message: Message, arguments: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """Send the signal where somebody watches at the seams, or inside a test case."""
    seen = hooks.HandlerCall(
        message[ID], shard.scope_number, shard.key, message[CATEGORY], message[OBJECT]
    )
    with _savepoint(run.engine) if run.in_testcase else nullcontext():
        for seam in hooks.active.before_handler:
            seam(seen)
        heard = run.signal.send(run.route(message[CATEGORY]).category, **arguments)
        for seam in hooks.active.after_handler:
            seam(seen)
    return heard


@contextmanager
def _savepoint(engine: Engine) -> Iterator[None]:
    """Keep a test case's transaction alive when a handler's SQL fails in it (ENGINE 9).

    A plain savepoint and no atomic block: a handler that calls another silo
    must find no transaction open but the test case's own.
    """
    connection = engine.connection
    sid = str(connection.savepoint())
    try:
        yield
    except BaseException:
        # First, as in Django's own Atomic: a broken transaction refuses even the way back.
        connection.needs_rollback = False
        connection.savepoint_rollback(sid)
        raise
    connection.savepoint_commit(sid)


class _LostShardError(Exception):
    """Rolls an atomic handler back: its shard, or its message, is no longer ours."""


def in_transaction(run: Pass, shard: Shard, group: Group, captured: Sequence[int]) -> bool:
    """Run an atomic scope's handler with its fenced acknowledgement; False if the shard was lost.

    The lease is locked last, so that its renewal is not blocked while the
    handler runs, and the count of deleted messages must be what was captured:
    else all of it is rolled back (ENGINE 8).
    """
    engine, keys = run.engine, run.engine.keys([shard.key])
    run.batch.flush()
    parked = [each for each in captured if each not in group.ids]
    try:
        with transaction.atomic(using=engine.alias):
            call(run, shard, group.newest)
            with engine.connection.cursor() as cursor:
                cursor.execute(engine.sql("fence"), {"token": run.leases.token, **keys})
                owned = cursor.fetchone() is not None
                cursor.execute(engine.sql("ack"), {"ids": list(captured)})
                gone = cursor.rowcount
                if parked:
                    cursor.execute(engine.sql("ack_parked"), {"parked_ids": parked})
                    gone += cursor.rowcount
            if not owned or gone != len(captured):
                raise _LostShardError  # noqa: TRY301 - the way to roll back
    except _LostShardError:
        run.batch.drop(shard.key)
        return False
    return True


def at_most_once(run: Pass, shard: Shard, group: Group, captured: Sequence[int]) -> bool:
    """Move the message to the dead letters, then run its handler; a return deletes it there.

    A failure or a crash leaves a dead letter, and nothing runs twice.
    """
    engine, message = run.engine, group.newest
    shard.is_whole = False
    run.batch.flush()
    older = [each for each in captured if each != message[ID]]
    rows = engine.query(
        "park",
        {
            "park_ids": [message[ID]],
            "reason": "dead",
            "delay": None,
            "park_error": NOT_FINISHED,
        },
    )
    if not rows:
        return True
    if older:
        run.take(shard, group, older, calls=0)
    try:
        call(run, shard, message)
    except Exception as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
        engine.query("note_error", {"park_ids": [message[ID]], "park_error": error_text(exc)})
        run.lost(shard, group, exc)
        return True
    engine.run([engine.sql("ack_parked")], {"parked_ids": [message[ID]]})
    run.batch.count(message[CATEGORY], 1, group.age, calls=1)
    run.batch.flush()
    return True


def error_text(error: BaseException) -> str:
    """Return an error with its traceback, as dead letters keep it."""
    return "".join(traceback.format_exception(error))[-20_000:].replace("\x00", "")
