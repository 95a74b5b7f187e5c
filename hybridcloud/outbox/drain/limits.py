"""How much a drainer takes on at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The tunables of a drainer.

    Attributes:
        shards_per_pass: shards that a pass claims; of half as many, a message costs a tenth more
            where each shard has one.
        messages_per_pass: messages that a pass reads, shared among its shards.
        least_per_shard: messages that a pass reads of each shard at least.
        budget_s: seconds after which a drain begins with no further shard.
        time_slice_s: seconds of a pass after which a shard leaves the rest of its messages.
        longest_unacknowledged_s: seconds after which handled messages are acknowledged, however
            few: what a crash may repeat.
        suspects_every_s: seconds between two looks for shards whose drainer vanished.
        look_every_s: seconds after which a drainer that goes ahead looks at what it has passed.
        behind_share: how many times longer than a look behind it is to the next one.
        everything_share: the same for looks at everything.
        rows_per_look: messages that one look by ids returns.
        lease_bytes: size of the lease table from which it is worth a rewrite.
        settle_every_s: seconds between two moves of the settled id.
        slow_s: seconds from which a claim is slow.
        slow_shard_s: what each claimed shard adds to that.
        slow_claims: slow claims in a row that are no accident.
        quick_s: a look behind that takes no longer has stepped over few dead rows.
    """

    shards_per_pass: int = 512
    messages_per_pass: int = 5000
    least_per_shard: int = 20
    budget_s: float = 30.0
    time_slice_s: float = 5.0
    longest_unacknowledged_s: float = 0.25
    suspects_every_s: float = 1.0
    look_every_s: float = 10.0
    behind_share: int = 20
    everything_share: int = 100
    rows_per_look: int = 5000
    lease_bytes: int = 1_000_000
    settle_every_s: float = 0.1
    slow_s: float = 0.005
    slow_shard_s: float = 0.000_05
    slow_claims: int = 3
    quick_s: float = 0.001


LIMITS = Limits()
"""The limits in production."""
