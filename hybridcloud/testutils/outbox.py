"""Drains and inspects the outboxes of all silos in a test."""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Self, overload

from django.apps import apps
from django.conf import settings
from django.test import override_settings

from hybridcloud.errors import OutboxRecursionLimitError
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.declare.category import category_name
from hybridcloud.outbox.deliver.inline import drain_outbox
from hybridcloud.outbox.store.tables import outbox_models
from hybridcloud.rpc.client import transport
from hybridcloud.testutils.rpc import in_process_transport
from silos import SiloMode, assume_silo
from silos.cells import all_cells
from silos.router import alias_for_model, alias_of, silo_aliases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

__all__ = [
    "OutboxProbe",
    "OutboxRecursionLimitError",
    "OutboxRunner",
    "assert_outbox",
    "drain_outboxes",
    "outbox_context",
    "outbox_runner",
    "pending_messages",
    "refute_outbox",
]

MOST_ROUNDS: Final = 10


class OutboxRunner:
    """What `outbox_runner` returns: a context manager and decorator."""

    def __init__(self, *, include_delayed: bool = False) -> None:
        self._include_delayed = include_delayed
        self._open: list[ExitStack] = []

    def __enter__(self) -> Self:
        """Turn flushes off."""
        # By the settings, not by outbox_context(): calls that arrive by RPC, and threads, have
        # contexts of their own.
        current = getattr(settings, "HYBRIDCLOUD", {})
        with ExitStack() as stack:
            stack.enter_context(override_settings(HYBRIDCLOUD={**current, "FLUSH": "cron"}))
            if not transport.is_overridden:
                # Django's own test runner knows nothing of the pytest plugin.
                stack.enter_context(in_process_transport())
            self._open.append(stack.pop_all())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain, unless the block failed.

        Flushes stay off until the end, for what handlers write.
        """
        with self._open.pop():
            if exc_type is None:
                drain_outboxes(include_delayed=self._include_delayed)

    def __call__[**P, R](self, function: Callable[P, R]) -> Callable[P, R]:
        """Drain at the end of each call of a function or coroutine function."""
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"Coroutine function {function.__qualname__}() cannot be decorated: Django's "
                f"databases do not work in event loops. Use outbox_runner() in a synchronous test."
            )

        @wraps(function)
        def drained(*args: P.args, **kwargs: P.kwargs) -> R:
            with OutboxRunner(include_delayed=self._include_delayed):
                return function(*args, **kwargs)

        return drained


@overload
def outbox_runner[**P, R](wrapped: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def outbox_runner(wrapped: None = None, /, *, include_delayed: bool = False) -> OutboxRunner: ...
def outbox_runner(
    wrapped: Callable[..., Any] | None = None, /, *, include_delayed: bool = False
) -> Any:
    """Deliver all messages of all silos after the block or the function.

        with outbox_runner():
            organization.save()
        # its handlers have run, and the handlers of what they wrote

    Nothing is flushed inside the block, and nothing is delivered if it fails. At
    its end control and every cell are drained, each in its own silo, until no
    more messages come. Backoff is ignored, kill switches are respected. Works in
    a plain ``TestCase``, whose ``databases`` must name every silo's alias.

    Args:
        wrapped: a function to decorate, for use without parentheses.
        include_delayed: deliver delayed messages too, as if their time had come.

    Raises:
        OutboxFlushError: a handler failed; draining stopped there.
        OutboxRecursionLimitError: messages kept coming for 10 rounds.
    """
    runner = OutboxRunner(include_delayed=include_delayed)
    return runner if wrapped is None else runner(wrapped)


def drain_outboxes(*, include_delayed: bool = False) -> None:
    """Drain every silo until no more messages come.

    `outbox_runner` does this at its end.

    Raises:
        OutboxFlushError: a handler failed; draining stopped there.
        OutboxRecursionLimitError: messages kept coming for 10 rounds.
    """
    for _ in range(MOST_ROUNDS):
        if not _drain_once(include_delayed=include_delayed):
            return
    waiting = Counter(
        message.category for message in pending_messages() if not message.should_skip_shard()
    )
    if waiting:
        names = [category_name(number) for number, _ in waiting.most_common()]
        what = ", ".join(
            f"{category_name(each)} ({n} waiting)" for each, n in waiting.most_common()
        )
        raise OutboxRecursionLimitError(
            f"Messages keep coming: {what}, after {MOST_ROUNDS} rounds of outbox_runner() over all "
            f"silos. Each call of a handler writes a message that leads back to it: let it write "
            f"only when something has changed.",
            names,
        )


def _drain_once(*, include_delayed: bool) -> int:
    """Drain each silo once; return how many messages could run."""
    total = 0
    for mode, cell in _silos():
        with assume_silo(mode, cell=cell):
            for outbox in outbox_models(mode):
                total += drain_outbox(
                    outbox,
                    alias=alias_for_model(outbox),
                    ignore_backoff=True,
                    include_delayed=include_delayed,
                    raise_failures=True,
                )
    return total


def _silos() -> Iterator[tuple[SiloMode, str | None]]:
    """Yield the silos of this process, each database once."""
    for alias, (mode, cell) in silo_aliases().items():
        if mode is not SiloMode.CELL:
            yield SiloMode.CONTROL, None
        if mode is not SiloMode.CONTROL:
            names = [
                each.name for each in all_cells() if alias_of(SiloMode.CELL, each.name) == alias
            ]
            # Where cells share a database, its messages are handled in the first cell.
            yield SiloMode.CELL, cell or names[0]


def pending_messages(
    *,
    category: int | None = None,
    scope: int | None = None,
    shard: int | None = None,
    object_identifier: int | None = None,
    cell: str | None = None,
    payload: Mapping[str, Any] | None = None,
    parked: bool = False,
) -> list[Any]:
    """Return the messages that wait in the outboxes of all silos.

    The messages of each outbox come oldest first.

    Args:
        category: only of this category.
        scope: only of this scope.
        shard: only with this shard identifier.
        object_identifier: only about this object.
        cell: only for this cell (control's messages), or waiting in it (messages of cells).
        payload: only with a payload that contains these items.
        parked: return the parked messages instead, those that must not run now.
    """
    wanted: dict[str, Any] = {
        "category": category,
        "shard_scope": scope,
        "shard_identifier": shard,
        "object_identifier": object_identifier,
        "payload__contains": payload,
    }
    filters = {name: value for name, value in wanted.items() if value is not None}
    found: list[Any] = []
    for mode, own_cell in _silos():
        if cell is not None and mode is SiloMode.CELL and own_cell != cell:
            continue
        target = {"cell_name": cell} if cell is not None and mode is SiloMode.CONTROL else {}
        with assume_silo(mode, cell=own_cell):
            for outbox in outbox_models(mode):
                model = apps.get_model(outbox.parked_model) if parked else outbox
                found += model._default_manager.filter(**filters, **target).order_by("pk")
    return found


def assert_outbox(*, count: int | None = None, **filters: Any) -> list[Any]:
    """Assert that messages wait, and return them.

    Args:
        count: how many; if left out, at least one.
        filters: which ones, as for `pending_messages`.
    """
    found = pending_messages(**filters)
    if found and count in (None, len(found)):
        return found
    if count == 0 and not found:
        return found
    wanted = "a message" if count is None else f"{count} messages"
    raise AssertionError(f"Found {len(found)} instead of {wanted}{_shown(filters)}")


def refute_outbox(**filters: Any) -> None:
    """Assert that no message waits; filters as for `pending_messages`."""
    found = pending_messages(**filters)
    if found:
        raise AssertionError(f"Found {len(found)} instead of no message{_shown(filters)}")


class OutboxProbe:
    """The outboxes of all silos in a test; filters as for `pending_messages`."""

    def pending(self, **filters: Any) -> list[Any]:
        """Return the messages that wait."""
        return pending_messages(**filters)

    def assert_saved(self, *, count: int | None = None, **filters: Any) -> list[Any]:
        """Assert that messages wait, ``count`` if given; return them."""
        return assert_outbox(count=count, **filters)

    def refute_saved(self, **filters: Any) -> None:
        """Assert that no matching message waits."""
        refute_outbox(**filters)

    def drain(self, *, include_delayed: bool = False) -> None:
        """Drain every silo until no more messages come."""
        drain_outboxes(include_delayed=include_delayed)


def _shown(filters: Mapping[str, Any]) -> str:
    asked = ", ".join(f"{name}={value!r}" for name, value in filters.items()) or "any"
    rows = pending_messages(parked=bool(filters.get("parked")))
    waiting = "".join(f"\n  {row}, payload {row.payload}" for row in rows) or " nothing"
    return f" ({asked}). Waiting in all silos:{waiting}"
