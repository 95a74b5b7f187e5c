"""Decides whether a message may run now.

Nothing else asks the kill switches, the breaker of the target cell, the receivers, the recorded
failures, what is held, and the depth of the causal chain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridcloud import causation
from hybridcloud.conf import settings
from hybridcloud.errors import OutboxRecursionLimitError
from hybridcloud.outbox.declare.category import category_name, find_category
from hybridcloud.outbox.declare.scope import is_retired
from hybridcloud.outbox.declare.signals import process_cell_outbox, process_control_outbox
from hybridcloud.outbox.store.state import Reason
from hybridcloud.registry import cell_is_broken
from silos import SiloMode

if TYPE_CHECKING:
    from django.dispatch import Signal

    from hybridcloud.outbox.declare.category import OutboxCategory
    from hybridcloud.outbox.drain.coalesce import Message
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.switches import Switches


@dataclass(frozen=True, slots=True)
class Run:
    """The message may run now."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The message goes unhandled: its category is retired."""


@dataclass(frozen=True, slots=True)
class Park:
    """The message may not run now.

    Attributes:
        reason: why; ``DEAD`` ends in the dead letters.
        error: what is wrong with a dead one.
        delay: seconds until it is tried again, where that is known.
        note: what its row says.
    """

    reason: Reason
    error: OutboxRecursionLimitError | None = None
    delay: float | None = None
    note: str | None = None


type Answer = Run | Park | Drop

RUN: Final = Run()
DROP: Final = Drop()
_UNKNOWN: Final = Park(Reason.UNKNOWN)
_HELD: Final = Park(Reason.HELD)
_NOTHING: Final[frozenset[int]] = frozenset()


class Route(NamedTuple):
    """Where a category's messages go; open: it is in use and has a receiver."""

    category: OutboxCategory | None
    name: str
    is_retired: bool
    is_open: bool


def signal_of(engine: Engine) -> Signal:
    """Return the signal by which an outbox table's messages are handed out."""
    is_control = engine.outbox.silo_mode is SiloMode.CONTROL
    return process_control_outbox if is_control else process_cell_outbox


def has_receiver(engine: Engine, category: int) -> bool:
    """Say whether the running code knows a category and has a receiver."""
    member = find_category(category)
    return member is not None and signal_of(engine).has_listeners(member)


def route_of(engine: Engine, category: int) -> Route:
    """Return what the running code knows of a category at this moment."""
    retired = is_retired(category)
    is_open = not retired and has_receiver(engine, category)
    return Route(find_category(category), category_name(category), retired, is_open)


def is_cell_stopped(switches: Switches, cell: str) -> bool:
    """Say whether a cell is switched off or its breaker is open."""
    return switches.everything or cell in switches.cells or cell_is_broken(cell)


def is_shard_stopped(switches: Switches, key: ShardKey) -> bool:
    """Say whether a shard is switched off or its cell's breaker is open."""
    return switches.stops(key) or (key.cell is not None and cell_is_broken(key.cell))


class Gate:
    """Answers for the messages of one pass; ``alone``: of one suspect shard."""

    def __init__(
        self, engine: Engine, switches: Switches, *, heed_backoff: bool, alone: bool
    ) -> None:
        self._engine = engine
        self._switches = switches
        self._heed_backoff = heed_backoff
        self._alone = alone
        self._stopped = _NOTHING
        self.routes: dict[int, Route] = {}

    def opens(self, shard: Shard) -> bool:
        """Say whether a shard may be drained, before its messages are asked."""
        key = shard.key
        if key.cell is not None and cell_is_broken(key.cell):
            # The breaker opened during the pass, which is not an attempt of this shard.
            return False
        may_crash = shard.touched and shard.failures.crash_is_due(heed=self._heed_backoff)
        if may_crash and not self._alone:
            # A group that crashed its worker is tried alone, by another claim (rule 8).
            return False
        # Once a shard, so that a message costs one look into a set.
        if self._switches.categories:
            self._stopped = self._switches.stopped_categories(key)
        return True

    def route(self, category: int) -> Route:
        """Return what the running code knows of a category, looked up once a pass."""
        route = self.routes.get(category)
        if route is None:
            route = self.routes[category] = route_of(self._engine, category)
        return route

    def answer(self, shard: Shard, message: Message) -> Answer:
        """Say whether a message of the shard that was opened last may run now."""
        route = self.routes.get(message.category) or self.route(message.category)
        # Most messages: nothing below costs them anything.
        if route.is_open and not (shard.touched or self._stopped or message.headers):
            return RUN
        # Before what is not open: a retired category has no receiver either, but is not parked.
        if route.is_retired:
            return DROP
        if not route.is_open:
            return _UNKNOWN
        own = (message.category, message.object_identifier)
        if (
            message.category in self._stopped
            or own in shard.held
            or (self._heed_backoff and shard.failures.waits_for(*own))
            or shard.is_behind(message)
        ):
            return _HELD
        # Last, since it parses the headers, and what is held is not dead-lettered yet.
        error = _too_deep(message, route.name)
        return RUN if error is None else Park(Reason.DEAD, error)


def _too_deep(message: Message, name: str) -> OutboxRecursionLimitError | None:
    """Return the error if a message's causal chain is too long (rule 9)."""
    if message.headers is None:
        return None
    # Its headers carry the chain through all silos, so that a loop between two is found as well.
    chain = causation.from_headers(json.loads(message.headers))
    limit = settings().causation_limit
    if chain.depth < limit:
        return None
    return OutboxRecursionLimitError(
        f"Causal chain of {chain.depth} handlers, at most {limit} are allowed: "
        f"{' > '.join((*chain.chain, name))}. Break the loop: a handler must not write what makes "
        f"its own message again.",
        chain=chain.chain,
    )
