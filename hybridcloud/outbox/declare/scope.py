"""Scopes: what a shard is keyed by, and how its shards behave.

Users subclass `OutboxScope` with members made by `scope_categories`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox.declare import validation
from hybridcloud.outbox.declare.validation import Declared, class_name, full_name, place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridcloud.outbox.declare.category import OutboxCategory


_SWITCHES: Final = ("organization", "user")


class OnFailure(enum.Enum):
    """How much of a shard waits when a handler fails."""

    BLOCK_SHARD = "shard"
    BLOCK_CATEGORY = "category"
    BLOCK_OBJECT = "object"


class Delivery(enum.Enum):
    """Whether a crash may repeat a message or may lose it."""

    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"


@dataclass(frozen=True, slots=True)
class Policy:
    """How the shards of a scope behave; each default is the safe one.

    The attributes are the arguments of `scope_categories`, which documents them; ``ack`` is always
    1 in atomic and at-most-once scopes.
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
    switch: str | None = None
    categories: frozenset[OutboxCategory] = frozenset()
    retired: frozenset[OutboxCategory] = frozenset()

    @property
    def is_special(self) -> bool:
        """Whether a handler is called in another way than the ordinary one."""
        return self.atomic or self.delivery is Delivery.AT_MOST_ONCE


@dataclass(frozen=True, slots=True)
class ScopeDeclaration:
    """What `scope_categories` returns, and `OutboxScope` makes a member of.

    It is not a tuple, because Enum would unpack that. ``on_failure`` is None if it was not given.
    """

    number: int
    policy: Policy
    on_failure: OnFailure | None

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong in the declaration, each with what to do about it."""
        policy = self.policy
        if policy.delivery is Delivery.AT_MOST_ONCE:
            given = (
                ("atomic", policy.atomic or None),
                ("on_failure", self.on_failure),
                ("max_attempts", policy.max_attempts),
            )
            for name, argument in given:
                if argument is not None:
                    yield (
                        f"AT_MOST_ONCE cannot be combined with {name}: a message is tried once "
                        f"and dead-lettered if it fails. Leave {name} out"
                    )
        for name, value in (("ack", policy.ack), ("max_attempts", policy.max_attempts)):
            # True is an integer too.
            if value is not None and (value is True or not isinstance(value, int) or value < 1):
                yield f"{name} is {value!r}. Give an integer of at least 1"
        timeout = policy.handler_timeout
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            yield f"handler_timeout is {timeout!r}. Give seconds above 0"
        if policy.owner is not None and policy.owner.count(".") != 1:
            yield f"owner is {policy.owner!r}. Give a model's label, such as 'acme.Organization'"
        if policy.switch not in (None, *_SWITCHES):
            yield f"switch is {policy.switch!r}. Give {' or '.join(map(repr, _SWITCHES))}"


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
    switch: Literal["organization", "user"] | None = None,
) -> ScopeDeclaration:
    """Declare a scope: its number, its categories and how its shards behave.

    Args:
        value: the scope's number, 0 to 9999; never change or reuse it.
        categories: the categories in use; each belongs to one scope.
        retired: categories no longer in use: their numbers stay taken, and
            remaining messages are dropped and counted.
        shard_key: attribute of models that holds the shard identifier.
        owner: label of the model whose own id is the shard identifier.
        coalesce: handle only the newest message of a category and object.
        on_failure: how much of the shard waits for what failed; default the shard.
        max_attempts: attempts before a message is dead-lettered; None: for ever.
        ack: messages per acknowledgement; always 1 in atomic and at-most-once scopes.
        atomic: run the handler in a transaction with its acknowledgement; for
            handlers that write to the same database only.
        delivery: with at most once, a failed message is dead-lettered at once.
        handler_timeout: seconds until a running handler loses its shard; None: as
            ``HYBRIDCLOUD["HANDLER_TIMEOUT"]``.
        switch: whose shards these are: the option ``…disabled_organization_shards`` or
            ``…disabled_user_shards`` stops them. ORGANIZATION_SCOPE and USER_SCOPE say so by name.
    """
    policy = Policy(
        coalesce=coalesce,
        on_failure=on_failure or OnFailure.BLOCK_SHARD,
        max_attempts=max_attempts,
        ack=1 if atomic or delivery is Delivery.AT_MOST_ONCE else ack,
        atomic=atomic,
        delivery=delivery,
        handler_timeout=handler_timeout,
        shard_key=shard_key,
        owner=owner,
        switch=switch,
        categories=frozenset(categories),
        retired=frozenset(retired),
    )
    return ScopeDeclaration(value, policy, on_failure)


_SWITCH_BY_NAME: Final = {"ORGANIZATION_SCOPE": "organization", "USER_SCOPE": "user"}


class OutboxScope(enum.IntEnum):
    """What a shard is keyed by; members are made by `scope_categories`.

    ::

        class Scope(OutboxScope, categories=Category):
            ORGANIZATION_SCOPE = scope_categories(0, {Category.ORGANIZATION_UPDATE})

    The ``policy`` of a member says how the shards of the scope behave.
    """

    policy: Policy
    declaration: ScopeDeclaration | None

    def __new__(cls, value: int | ScopeDeclaration, /) -> Self:
        """Make a member of a declaration; with a number, Enum looks one up."""
        given = value if isinstance(value, ScopeDeclaration) else None
        number = value if isinstance(value, int) else value.number
        member = int.__new__(cls, number)
        member._value_, member.declaration = number, given
        member.policy = Policy() if given is None else given.policy
        return member

    @property
    def switch(self) -> str | None:
        """Whose shards these are, for the two options that stop some."""
        return self.policy.switch or _SWITCH_BY_NAME.get(self.name)

    def __init_subclass__(
        cls, *, categories: type[OutboxCategory] | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__members__:
            return
        validation.check_numbers(cls, "scope")
        validation.check_scopes(cls, categories)
        for category in categories or ():
            owner = scope_of(category.value)
            # A class of the same name is this one, of a module that is being reloaded.
            if owner is not None and class_name(type(owner)) != class_name(cls):
                raise ConfigurationError(
                    f"Category in two scopes: {full_name(category)} is in {place(owner)} and in "
                    f"scope class {class_name(cls)}. Name the categories in one of them."
                )
        scopes.add(cls)
        map_categories()


scopes: Declared[OutboxScope] = Declared("scope")
"""The scopes of all apps."""
_scope_by_category: dict[int, OutboxScope] = {}


def find_scope(number: int) -> OutboxScope | None:
    """Return the scope with this number; None if the code has none."""
    return scopes.members.get(number)


def scope_of(category_number: int) -> OutboxScope | None:
    """Return a category's scope; None if no imported scope class names it."""
    return _scope_by_category.get(category_number)


def is_retired(category_number: int) -> bool:
    """Say whether a scope retired the category, so its messages are dropped."""
    scope = _scope_by_category.get(category_number)
    return scope is not None and category_number in scope.policy.retired


def scope_name(number: int) -> str:
    """Return a scope's name, or ``scope 7`` if the code has none."""
    scope = scopes.members.get(number)
    return f"scope {number}" if scope is None else scope.name


def all_scopes() -> tuple[OutboxScope, ...]:
    """Return the scopes of all apps."""
    return tuple(scopes.members.values())


def scope_choices() -> list[tuple[int, str]]:
    """Return a scope column's choices; new ones do not need a migration."""
    return sorted((each.value, each.name) for each in scopes)


def map_categories() -> None:
    """Recompute which scope each category is in."""
    _scope_by_category.clear()
    for scope in scopes:
        for each in scope.policy.categories | scope.policy.retired:
            _scope_by_category[each.value] = scope
