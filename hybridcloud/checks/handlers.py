"""Checks of receivers' signatures: without them a new argument of a signal would break every handler."""

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
    """hybridcloud.W009: a receiver takes the arguments that a later release adds."""
    return [
        Warning(
            f"{receiver_name(receiver)}, a receiver of {category.name}, takes no **kwargs.",
            hint="Add **kwargs to its signature: signals get new arguments.",
            obj=receiver,
            id="hybridcloud.W009",
        )
        for signal in (process_cell_outbox, process_control_outbox)
        for category in all_categories()
        for receiver in receivers_of(signal, category)
        if not func_accepts_kwargs(receiver)
    ]


def receivers_of(signal: Signal, category: OutboxCategory) -> list[Callable[..., Any]]:
    """Return what is connected for a category, without what hears every category."""
    # Django's own look-up; it has no public one that says who listens.
    live: Any = signal._live_receivers(category)  # noqa: SLF001
    everybody: Any = signal._live_receivers(None)  # noqa: SLF001
    return [each for each in live[0] if each not in everybody[0]]


def receiver_name(receiver: object) -> str:
    """Return a receiver's dotted name."""
    module = getattr(receiver, "__module__", "")
    return f"{module}.{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
