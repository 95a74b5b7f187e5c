"""The engine's public names: change and message commit together, and the message is handled until it has been.

Names are loaded at first use, so that a Celery app module can import
`hybridcloud.outbox.tasks` before Django's apps are ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridcloud.errors import (
        InvalidOutboxError,
        OutboxDatabaseError,
        OutboxFlushError,
        OutboxTransactionError,
    )
    from hybridcloud.outbox.declare.category import (
        Delivery,
        OnFailure,
        OutboxCategory,
        OutboxScope,
        scope_categories,
    )
    from hybridcloud.outbox.declare.cell_mapping import CellMapping
    from hybridcloud.outbox.declare.signals import (
        RetryLater,
        process_cell_outbox,
        process_control_outbox,
    )
    from hybridcloud.outbox.models import (
        CellOutbox,
        CellOutboxBase,
        ControlOutbox,
        ControlOutboxBase,
        OutboxBase,
    )
    from hybridcloud.outbox.write.context import outbox_context
    from hybridcloud.outbox.write.managers import (
        CellOutboxProducingManager,
        ControlOutboxProducingManager,
    )
    from hybridcloud.outbox.write.mixins import (
        CellOutboxProducingModel,
        ControlOutboxProducingModel,
        ReplicatedCellModel,
        ReplicatedControlModel,
    )

_HOMES = {
    "hybridcloud.errors": (
        "InvalidOutboxError",
        "OutboxDatabaseError",
        "OutboxFlushError",
        "OutboxTransactionError",
    ),
    "hybridcloud.outbox.declare.category": (
        "Delivery",
        "OnFailure",
        "OutboxCategory",
        "OutboxScope",
        "scope_categories",
    ),
    "hybridcloud.outbox.write.context": ("outbox_context",),
    "hybridcloud.outbox.write.managers": (
        "CellOutboxProducingManager",
        "ControlOutboxProducingManager",
    ),
    "hybridcloud.outbox.write.mixins": (
        "CellOutboxProducingModel",
        "ControlOutboxProducingModel",
        "ReplicatedCellModel",
        "ReplicatedControlModel",
    ),
    "hybridcloud.outbox.models": (
        "CellOutbox",
        "CellOutboxBase",
        "ControlOutbox",
        "ControlOutboxBase",
        "OutboxBase",
    ),
    "hybridcloud.outbox.declare.signals": (
        "RetryLater",
        "process_cell_outbox",
        "process_control_outbox",
    ),
    "hybridcloud.outbox.declare.cell_mapping": ("CellMapping",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CellMapping",
    "CellOutbox",
    "CellOutboxBase",
    "CellOutboxProducingManager",
    "CellOutboxProducingModel",
    "ControlOutbox",
    "ControlOutboxBase",
    "ControlOutboxProducingManager",
    "ControlOutboxProducingModel",
    "Delivery",
    "InvalidOutboxError",
    "OnFailure",
    "OutboxBase",
    "OutboxCategory",
    "OutboxDatabaseError",
    "OutboxFlushError",
    "OutboxScope",
    "OutboxTransactionError",
    "ReplicatedCellModel",
    "ReplicatedControlModel",
    "RetryLater",
    "outbox_context",
    "process_cell_outbox",
    "process_control_outbox",
    "scope_categories",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
