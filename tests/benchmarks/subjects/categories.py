"""The benchmarks' categories, one for each policy with a cost of its own."""

from __future__ import annotations

from hybridcloud.outbox import OutboxCategory, OutboxScope, scope_categories


class Category(OutboxCategory):
    DRAINED = 9100
    ACKNOWLEDGED = 9101
    ATOMIC = 9102
    DOCUMENT = 9103
    WALKED = 9104
    TRIGGERED = 9106
    WALKED_WITH_PAYLOAD = 9105


class Scope(OutboxScope, categories=Category):
    DRAINED = scope_categories(9100, {Category.DRAINED})
    ACKNOWLEDGED = scope_categories(9101, {Category.ACKNOWLEDGED}, ack=1)
    ATOMIC = scope_categories(9102, {Category.ATOMIC}, atomic=True)
    DOCUMENT = scope_categories(9103, {Category.DOCUMENT}, shard_key="organization_id")
    TRIGGERED = scope_categories(9105, {Category.TRIGGERED}, shard_key="organization_id")
    WALKED = scope_categories(
        9104, {Category.WALKED, Category.WALKED_WITH_PAYLOAD}, shard_key="organization_id"
    )
