"""The outbox engine: a change commits with its message, drainers call.

The rooms, each of which imports only from those below it::

    models     what a message row can be asked to do
    operate    what people do to messages
    deliver    who drains, and when: flush, wake-up, tick, task
    triggers   trigger mode: PostgreSQL writes the messages
    write      how a change and its messages come into one transaction
    drain      how claimed shards are read, handed to handlers and settled
    store      tables, switches, and the session that runs the engine's SQL
    declare    what messages there are: categories, scopes, identifiers, signals

``write`` and ``drain`` do not know of each other. The public names below are loaded at first
use, so that a Celery app module can import ``hybridcloud.outbox.tasks`` before Django's apps
are ready. docs/explanation/engine.md tells a message's way through the rooms.
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
    from hybridcloud.outbox.declare.category import OutboxCategory
    from hybridcloud.outbox.declare.cell_mapping import CellMapping
    from hybridcloud.outbox.declare.scope import Delivery, OnFailure, OutboxScope, scope_categories
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
    from hybridcloud.outbox.write.querysets import (
        CellOutboxProducingManager,
        ControlOutboxProducingManager,
    )
    from hybridcloud.outbox.write.replicated import (
        CellOutboxProducingModel,
        ControlOutboxProducingModel,
        ReplicatedCellModel,
        ReplicatedControlModel,
    )

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
# In the order of their imports, so that a name loads nothing from above its home.
_HOMES = (
    "hybridcloud.errors",
    "hybridcloud.outbox.declare.signals",
    "hybridcloud.outbox.declare.scope",
    "hybridcloud.outbox.declare.category",
    "hybridcloud.outbox.declare.cell_mapping",
    "hybridcloud.outbox.write.context",
    "hybridcloud.outbox.write.querysets",
    "hybridcloud.outbox.write.replicated",
    "hybridcloud.outbox.models",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
