"""The former path of what declares messages, which migrations name."""

from __future__ import annotations

from hybridcloud.outbox.declare.category import OutboxCategory, category_choices
from hybridcloud.outbox.declare.scope import (
    Delivery,
    OnFailure,
    OutboxScope,
    scope_categories,
    scope_choices,
)

__all__ = [
    "Delivery",
    "OnFailure",
    "OutboxCategory",
    "OutboxScope",
    "category_choices",
    "scope_categories",
    "scope_choices",
]
