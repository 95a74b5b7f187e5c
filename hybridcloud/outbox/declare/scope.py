"""How the shards of a scope behave: without these values every scope would behave alike."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridcloud.outbox.declare.category import OutboxCategory


class OnFailure(enum.Enum):
    """How much of a shard waits when a handler fails."""

    BLOCK_SHARD = "shard"
    BLOCK_CATEGORY = "category"
    BLOCK_OBJECT = "object"


class Delivery(enum.Enum):
    """Whether a message may be handled again after a crash, or rather be lost."""

    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"


@dataclass(frozen=True, slots=True)
class Policy:
    """How the shards of a scope behave; each default is the safe one.

    Attributes:
        coalesce: of several messages of one category and object only the newest is handled.
        on_failure: how much of the shard waits when a handler fails.
        max_attempts: attempts after which a message is a dead letter; None: tried for ever.
        ack: messages per acknowledgement.
        atomic: the handler runs in one transaction with its acknowledgement.
        delivery: at least once, or at most once.
        handler_timeout: seconds after which a running handler loses its shard;
            None: as ``HYBRIDCLOUD["HANDLER_TIMEOUT"]``.
        shard_key: attribute of a model that holds its shard identifier.
        owner: label of the model whose id is the shard identifier.
        categories: what is in use in the scope.
        retired: what no longer is; messages of these are dropped, counted.
    """

    coalesce: bool = True
    on_failure: OnFailure = OnFailure.BLOCK_SHARD
    max_attempts: int | None = None
    ack: int = 100
    atomic: bool = False
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    handler_timeout: float | None = None
    shard_key: str | None = None
    owner: str | None = None
    categories: frozenset[OutboxCategory] = frozenset()
    retired: frozenset[OutboxCategory] = frozenset()


@dataclass(frozen=True, slots=True)
class ScopeDeclaration:
    """What `scope_categories` returns: a number and a policy, made a member by `OutboxScope`.

    Not a tuple, which Enum would unpack.

    Attributes:
        number: the scope's number.
        policy: how its shards behave.
        on_failure: as it was given; None where it was not.
    """

    number: int
    policy: Policy
    on_failure: OnFailure | None

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong in the declaration, each with what to do about it."""
        policy = self.policy
        if policy.delivery is Delivery.AT_MOST_ONCE:
            given = {
                "atomic": policy.atomic,
                "on_failure": self.on_failure is not None,
                "max_attempts": policy.max_attempts is not None,
            }
            for name, is_given in given.items():
                if is_given:
                    yield (
                        f"AT_MOST_ONCE cannot go with {name}: a message is tried once and its "
                        f"failure is a dead letter at once. Leave {name} out"
                    )
        for name, value in (("ack", policy.ack), ("max_attempts", policy.max_attempts)):
            if value is not None and not _is_count(value):
                yield f"{name} is {value!r}. Give an integer of at least 1"
        timeout = policy.handler_timeout
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            yield f"handler_timeout is {timeout!r}. Give seconds above 0"
        if policy.owner is not None and policy.owner.count(".") != 1:
            yield f"owner is {policy.owner!r}. Give a model's label, such as 'acme.Organization'"


def scope_categories(
    value: int,
    categories: Iterable[OutboxCategory],
    *,
    retired: Iterable[OutboxCategory] = (),
    shard_key: str | None = None,
    owner: str | None = None,
    coalesce: bool = True,
    on_failure: OnFailure | None = None,
    max_attempts: int | None = None,
    ack: int = 100,
    atomic: bool = False,
    delivery: Delivery = Delivery.AT_LEAST_ONCE,
    handler_timeout: float | None = None,
) -> ScopeDeclaration:
    """Declare a scope: its number, its categories and how its shards behave.

    Args:
        value: the scope's number, 0 to 9999, for ever.
        categories: the categories in use; each belongs to one scope.
        retired: categories no longer in use: their numbers stay taken, and
            messages still under way are dropped, counted.
        shard_key: attribute of models that holds the shard identifier.
        owner: label of the model whose own id is the shard identifier.
        coalesce: handle only the newest message of a category and object.
        on_failure: how much of the shard waits for what failed; default the shard.
        max_attempts: attempts until the dead letters; None: for ever.
        ack: messages per acknowledgement; atomic and at-most-once scopes have 1.
        atomic: run the handler in a transaction with its acknowledgement; for
            handlers that write to the same database only.
        delivery: at most once means that a failure is a dead letter at once.
        handler_timeout: seconds until a running handler loses its shard.
    """
    alone = atomic or delivery is Delivery.AT_MOST_ONCE
    policy = Policy(
        coalesce=coalesce,
        on_failure=on_failure or OnFailure.BLOCK_SHARD,
        max_attempts=max_attempts,
        ack=1 if alone else ack,
        atomic=atomic,
        delivery=delivery,
        handler_timeout=handler_timeout,
        shard_key=shard_key,
        owner=owner,
        categories=frozenset(categories),
        retired=frozenset(retired),
    )
    return ScopeDeclaration(value, policy, on_failure)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
