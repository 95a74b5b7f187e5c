"""Checks of receivers' signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Warning  # noqa: A004 - Django's
from django.utils.inspect import func_accepts_kwargs

from hybridcloud.outbox import process_cell_outbox, process_control_outbox
from hybridcloud.outbox.declare.category import all_categories

if TYPE_CHECKING:
    from collections.abc import Callable

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


def receivers_of(signal: Signal, category: OutboxCategory) -> list[Callable[..., Any]]:
    """Return a category's receivers, except those of every category."""
    # Django has no public way to list the receivers of a sender.
    live: Any = signal._live_receivers(category)  # noqa: SLF001
    everybody: Any = signal._live_receivers(None)  # noqa: SLF001
    return [each for each in live[0] if each not in everybody[0]]


def receiver_name(receiver: object) -> str:
    """Return a receiver's dotted name."""
    module = getattr(receiver, "__module__", "")
    return f"{module}.{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
