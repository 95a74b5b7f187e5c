"""System checks of receivers.

E001 a replicated model's category has a second receiver · W002 category without a receiver
"""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 - Django's

from hybridcloud.checks import TAG
from hybridcloud.checks.handlers import receiver_name, receivers_of
from hybridcloud.outbox import process_cell_outbox, process_control_outbox
from hybridcloud.outbox.declare.category import all_categories, connected_mode, connected_models
from hybridcloud.outbox.declare.scope import is_retired
from receivers.outbox.built_in import ModelReceiver
from silos import SiloMode

_SIGNALS = {SiloMode.CELL: process_cell_outbox, SiloMode.CONTROL: process_control_outbox}


def register_all() -> None:
    """Register the checks; safe to call twice."""
    register(check_single_owner, TAG)
    register(check_every_category_is_heard, TAG)


def check_single_owner(**_: Any) -> list[CheckMessage]:
    """hybridcloud_receivers.E001: replicated models have no other receiver."""
    found: list[CheckMessage] = []
    for category, model in connected_models.items():
        signal = _SIGNALS[connected_mode(category) or SiloMode.CELL]
        others = [each for each in receivers_of(signal, category) if not _is_built_in(each)]
        found += [
            Error(
                f"Two receivers of {category.name}: the handlers of {model._meta.label}, and "
                f"{receiver_name(other)}.",
                hint="Move the work into the model's handlers, or use a separate category for it.",
                obj=model,
                id="hybridcloud_receivers.E001",
            )
            for other in others
        ]
    return found


def check_every_category_is_heard(**_: Any) -> list[CheckMessage]:
    """hybridcloud_receivers.W002: every category has a receiver.

    Messages of a category without one are parked (rule 3).
    """
    return [
        Warning(
            f"No receiver of {type(category).__name__}.{category.name}: its messages are parked.",
            hint="Write one in an app's outbox_receivers.py, give the category to a replicated "
            "model, or retire it: scope_categories(…, retired={…}).",
            obj=category,
            id="hybridcloud_receivers.W002",
        )
        for category in all_categories()
        if not is_retired(category.value)
        and not any(signal.has_listeners(category) for signal in _SIGNALS.values())
    ]


def _is_built_in(receiver: object) -> bool:
    return isinstance(receiver, ModelReceiver)
