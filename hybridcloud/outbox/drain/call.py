"""Hands messages to their receivers; nothing else sends the signals.

No transaction of the engine is open around a handler, except in atomic scopes.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self

from hybridcloud import causation, hooks
from hybridcloud.errors import OutboxTransactionError
from hybridcloud.outbox.declare.signals import RetryLater
from hybridcloud.outbox.drain.boundary import Boundary
from hybridcloud.outbox.drain.coalesce import moment
from hybridcloud.outbox.drain.gate import signal_of
from silos import SiloMode, assume_silo
from silos.cells import all_cells
from silos.mode import get_current_silo
from silos.router import silo_aliases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.drain.coalesce import Message
    from hybridcloud.outbox.drain.gate import Route
    from hybridcloud.outbox.drain.lease import Leases
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.store.session import Engine

# What PostgreSQL makes of jsonb begins with no space: half of what json.loads does is not needed.
_decode: Final = json.JSONDecoder().raw_decode


def own_silo(engine: Engine) -> AbstractContextManager[object]:
    """Enter the silo, and cell, of the outbox table: where its handlers run."""
    mode = engine.outbox.silo_mode
    if mode is SiloMode.CONTROL:
        return assume_silo(SiloMode.CONTROL)
    _, cell = silo_aliases().get(engine.alias, (mode, None))
    cell = cell or get_current_silo().cell or all_cells()[0].name
    return assume_silo(SiloMode.CELL, cell=cell)


class Caller:
    """Calls the receivers of one pass's messages, inside its block.

    Args:
        engine: the outbox table.
        leases: told when a handler begins and ends, so that they are renewed while it runs.
    """

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine = engine
        self._leases = leases
        self._signal = signal_of(engine)
        self._label = engine.tables.label
        self._in_testcase = engine.in_testcase
        self._causation = causation.beginning()
        self._boundary = Boundary(engine.connection)

    def __enter__(self) -> Self:
        self._begin = self._causation.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._causation.__exit__()

    def __call__(self, shard: Shard, message: Message, route: Route) -> None:
        """Call the receivers of a message; what they raise is passed on.

        Raises:
            RetryLater: its receivers were disconnected since the pass began (rule 3).
            OutboxTransactionError: it left a transaction open, or ended the one around it.
        """
        key, payload, due = shard.key, message.payload, message.scheduled_for
        added = moment(message.date_added)
        arguments: dict[str, Any] = {
            "payload": None if payload is None else _decode(payload)[0],
            "object_identifier": message.object_identifier,
            "shard_identifier": key.identifier,
            "shard_scope": key.scope,
            "date_added": added,
            "scheduled_for": added if due is None else moment(due),
            "message_id": message.id,
        }
        if key.cell is not None:
            arguments["cell_name"] = key.cell
        leases = self._leases
        leases.handler_timeout = shard.policy.handler_timeout
        # Renewed by the keeper from here on, until the handler returns or counts as hung.
        leases.handler_since = monotonic()
        self._begin(self._cause(message, route))
        self._boundary.enter()
        left = ""
        try:
            if self._in_testcase or hooks.active.before_handler or hooks.active.after_handler:
                heard = self._send_watched(shard, message, route, arguments)
            else:
                heard = self._signal.send(route.category, **arguments)
        finally:
            leases.handler_since = None
            self._begin(None)
            left = self._boundary.leave()
        if left:
            raise OutboxTransactionError(
                f"{left}. Use `with transaction.atomic()`, which ends with its block."
            )
        # Without a receiver nothing was handled: the message is kept and tried later (rule 3).
        if not heard:
            raise RetryLater(reason="its receiver was disconnected")

    def _cause(self, message: Message, route: Route) -> causation.First | causation.Causation:
        # Most messages have none: parsing is what costs here.
        if message.headers is None:
            return (self._label, message.id, route.name)
        return causation.from_headers(json.loads(message.headers)).followed_by(route.name)

    def _send_watched(
        self, shard: Shard, message: Message, route: Route, arguments: dict[str, Any]
    ) -> list[tuple[Any, Any]]:
        """Send the signal where the seams are watched, or inside a test case."""
        seen = hooks.HandlerCall(
            message.id,
            shard.key.scope,
            shard.key.columns(),
            message.category,
            message.object_identifier,
        )
        with _savepoint(self._engine) if self._in_testcase else nullcontext():
            for seam in hooks.active.before_handler:
                seam(seen)
            heard = self._signal.send(route.category, **arguments)
            for seam in hooks.active.after_handler:
                seam(seen)
        return heard


@contextmanager
def _savepoint(engine: Engine) -> Iterator[None]:
    """Keep a test case's transaction alive when a handler's SQL fails in it."""
    # Not an atomic block: a handler that calls another silo must find no transaction open but
    # the test case's own.
    connection = engine.connection
    sid = str(connection.savepoint())
    try:
        yield
    except BaseException:
        # First, as in Django's Atomic: a broken transaction refuses even the rollback.
        connection.needs_rollback = False
        connection.savepoint_rollback(sid)
        raise
    connection.savepoint_commit(sid)
