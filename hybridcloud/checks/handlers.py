"""Checks of receivers' signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's
from django.utils.inspect import func_accepts_kwargs

from hybridcloud.outbox import process_cell_outbox, process_control_outbox
from hybridcloud.outbox.declare.category import (
    all_categories,
    connected_mode,
    connected_models,
)
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.dispatch import Signal

    from hybridcloud.outbox import OutboxCategory


def check_receivers(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W009: receivers accept arguments that later releases add."""
    return [
        Warning(
            f"{receiver_name(receiver)}, a receiver of {category.name}, takes no **kwargs.",
            hint="Add **kwargs to its signature: later releases may add arguments to the signal.",
            obj=receiver,
            id="hybridcloud.W009",
        )
        for signal in (process_cell_outbox, process_control_outbox)
        for category in all_categories()
        for receiver in receivers_of(signal, category)
        if not func_accepts_kwargs(receiver)
    ]


def check_senders(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E018: receivers are connected to a signal that calls them."""
    return [
        Error(f"{receiver_name(receiver)} {what}.", hint=hint, obj=receiver, id="hybridcloud.E018")
        for receiver, what, hint in _misconnected()
    ]


def _misconnected() -> Iterator[tuple[Callable[..., Any], str, str]]:
    """Yield receivers with what is wrong with each, and what to do."""
    for signal, mode in (
        (process_cell_outbox, SiloMode.CELL),
        (process_control_outbox, SiloMode.CONTROL),
    ):
        for receiver in everybody(signal):
            yield (
                receiver,
                "receives messages of every category, so that none waits for its own handler",
                "Connect it with sender=, a category.",
            )
        for category in all_categories():
            other = connected_mode(category)
            if other is None or other is mode:
                continue
            where = "control" if other is SiloMode.CONTROL else "cells"
            for receiver in receivers_of(signal, category):
                model = getattr(connected_models.get(category), "__name__", "its model")
                yield (
                    receiver,
                    f"is never called: {category.name} is of {model}, whose messages are in {where}",
                    "Connect it to the other of the two signals.",
                )


def everybody(signal: Signal) -> list[Callable[..., Any]]:
    """Return the receivers of a signal that were connected without a sender."""
    live: Any = signal._live_receivers(None)  # noqa: SLF001
    return list(live[0])


def receivers_of(signal: Signal, category: OutboxCategory) -> list[Callable[..., Any]]:
    """Return a category's receivers, except those of every category."""
    # Django has no public way to list the receivers of a sender.
    live: Any = signal._live_receivers(category)  # noqa: SLF001
    return [each for each in live[0] if each not in everybody(signal)]


def receiver_name(receiver: object) -> str:
    """Return a receiver's dotted name."""
    module = getattr(receiver, "__module__", "")
    return f"{module}.{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
