"""The former path of `declare.category`, which migrations name."""

from __future__ import annotations

from hybridcloud.outbox.declare.category import category_choices, scope_choices

__all__ = ["category_choices", "scope_choices"]
