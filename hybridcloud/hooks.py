"""Hooks: the facts that the engine reports, and the seams of its steps.

A listener subclasses `Hooks` and overrides the methods that it needs. Facts are
reported once per batch, never once per message. Seams are called at each step
and exist so that tests can stop a drainer at an exact point. Only overridden
methods are called, so that an unwatched step costs nothing.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridcloud.raised import is_own_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """The times of several messages, summed up.

    Attributes:
        count: the number of messages.
        total: the sum of their times, in seconds.
        most: the longest time, in seconds.
    """

    count: int
    total: float
    most: float


@dataclass(frozen=True, slots=True)
class Saved:
    """Messages that were committed to an outbox table.

    Attributes:
        outbox: label of the outbox model.
        counts: messages by category.
    """

    outbox: str
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Handled:
    """One acknowledgement: handlers returned and their messages are deleted.

    Attributes:
        outbox: label of the outbox model.
        cell: the target cell of control messages; None for cell messages or mixed batches.
        synchronous: whether a writer's own flush did it.
        calls: handler calls by category.
        messages: deleted messages by category, including coalesced ones.
        lag: seconds from due to acknowledgement, by category.
        retired: messages of retired categories that were dropped, by category.
    """

    outbox: str
    synchronous: bool
    calls: Mapping[int, int]
    messages: Mapping[int, int]
    lag: Mapping[int, Spread]
    retired: Mapping[int, int] = field(default_factory=dict)
    cell: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A handler failed, or its worker was lost while it ran.

    Attributes:
        outbox: label of the outbox model.
        shard: the sharding columns' values.
        scope: the scope's number.
        category: the category's number.
        object_identifier: the object of the message.
        message_id: the id of the message whose handler was called.
        attempts: failed attempts at the same work, including this one.
        crashed: whether the worker was lost, rather than the handler raising.
        dead: whether the message was dead-lettered.
        error: the handler's exception; None if the worker was lost.
        synchronous: whether a writer's own flush did it.
    """

    outbox: str
    shard: tuple[int | str, ...]
    scope: int
    category: int
    object_identifier: int
    message_id: int
    attempts: int
    crashed: bool
    dead: bool
    error: BaseException | None
    synchronous: bool


@dataclass(frozen=True, slots=True)
class Parked:
    """Messages that were moved to the parked table.

    Attributes:
        outbox: label of the outbox model.
        reason: why they were parked: ``delayed``, ``held``, ``unknown`` or ``dead``.
        counts: messages by category.
    """

    outbox: str
    reason: str
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Captured:
    """An exception that was swallowed because no caller could receive it.

    Attributes:
        error: the exception.
        where: the step that swallowed it.
        tags: category, scope, shard, object and the like, for error trackers.
    """

    error: BaseException
    where: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """The message that a handler is called for, at the seams around it.

    Attributes:
        message_id: its id.
        scope: the scope's number.
        shard: the sharding columns' values.
        category: the category's number.
        object_identifier: its object.
    """

    message_id: int
    scope: int
    shard: tuple[int | str, ...]
    category: int
    object_identifier: int


class Hooks:
    """The base of listeners; every method does nothing by default.

    Methods run on the thread that drains or writes, while no transaction of the
    engine is open. An exception in a fact's listener is logged and goes no
    further. One in a seam's listener propagates into the engine, which is what
    tests need.
    """

    def saved(self, fact: Saved) -> None:
        """Receive committed messages; called after the commit."""

    def handled(self, fact: Handled) -> None:
        """Receive an acknowledgement; called after its commit."""

    def failed(self, fact: Failed) -> None:
        """Receive a failure; called after it was recorded."""

    def parked(self, fact: Parked) -> None:
        """Receive parked messages; called after the commit."""

    def captured(self, fact: Captured) -> None:
        """Receive an exception that was swallowed."""

    def after_claim(self, shards: Sequence[tuple[int | str, ...]]) -> None:
        """Watch: shards were claimed; their messages are not read yet."""

    def after_fetch(self, count: int) -> None:
        """Watch: `count` messages were read; no handler has run yet."""

    def before_handler(self, call: HandlerCall) -> None:
        """Watch: the handler is about to run."""

    def after_handler(self, call: HandlerCall) -> None:
        """Watch: the handler returned; nothing is acknowledged yet."""

    def before_ack(self, ids: Sequence[int]) -> None:
        """Watch: these messages are about to be acknowledged."""

    def after_ack(self, ids: Sequence[int]) -> None:
        """Watch: these messages were acknowledged."""

    def after_renew(self, lost: int) -> None:
        """Watch: this process renewed its leases; `lost` of them were lost."""

    def before_wait(self) -> None:
        """Watch: a sync flush found its shard taken and is about to wait."""


_LOG = logging.getLogger(__name__)
_EVENTS = tuple(name for name in vars(Hooks) if not name.startswith("_"))


class _Active:
    """The overridden methods of the installed listeners, by event."""

    __slots__ = _EVENTS
    saved: tuple[Callable[[Saved], None], ...]
    handled: tuple[Callable[[Handled], None], ...]
    failed: tuple[Callable[[Failed], None], ...]
    parked: tuple[Callable[[Parked], None], ...]
    captured: tuple[Callable[[Captured], None], ...]
    after_claim: tuple[Callable[[Sequence[tuple[int | str, ...]]], None], ...]
    after_fetch: tuple[Callable[[int], None], ...]
    before_handler: tuple[Callable[[HandlerCall], None], ...]
    after_handler: tuple[Callable[[HandlerCall], None], ...]
    before_ack: tuple[Callable[[Sequence[int]], None], ...]
    after_ack: tuple[Callable[[Sequence[int]], None], ...]
    after_renew: tuple[Callable[[int], None], ...]
    before_wait: tuple[Callable[[], None], ...]


_installed: list[Hooks] = []
active = _Active()


def _rebuild() -> None:
    for event in _EVENTS:
        overridden = tuple(
            getattr(hook, event)
            for hook in _installed
            if getattr(type(hook), event) is not getattr(Hooks, event)
        )
        setattr(active, event, overridden)


_rebuild()


def install(listener: Hooks) -> None:
    """Add a listener; adding one twice does nothing."""
    if listener not in _installed:
        _installed.append(listener)
        _rebuild()


def remove(listener: Hooks) -> None:
    """Remove a listener; does nothing if it is not installed."""
    if listener in _installed:
        _installed.remove(listener)
        _rebuild()


@contextmanager
def installed[H: Hooks](listener: H) -> Iterator[H]:
    """Install a listener inside the block."""
    install(listener)
    try:
        yield listener
    finally:
        remove(listener)


def tell[F](listeners: tuple[Callable[[F], None], ...], fact: F) -> None:
    """Report a fact to its listeners.

    If one raises, its exception is logged and the others are still called.
    """
    for listener in listeners:
        try:
            listener(fact)
        except BaseException as exc:
            if is_own_stop(exc):
                raise
            _LOG.exception("A listener of %s failed", type(fact).__name__)
