"""Refuses wrong declarations of categories and scopes at import.

Each refusal is a ConfigurationError that names the member. Numbers end up in tables and in messages
on their way, so a later deployment cannot take a mistake back.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hybridcloud.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum

    from hybridcloud.outbox.declare.category import OutboxCategory
    from hybridcloud.outbox.declare.scope import OutboxScope

_MOST: Final = 9999


class Declared[M: IntEnum]:
    """All subclasses of one kind by name, and their members by number."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.classes: dict[str, type[M]] = {}
        self.members: dict[int, M] = {}

    def add(self, kind: type[M]) -> None:
        """Record a class, or replace one of its name; refuse a taken number."""
        former = self.classes.get(class_name(kind))
        for member in kind:
            taken = self.members.get(member.value)
            if taken is not None and type(taken) is not former:
                raise ConfigurationError(
                    f"Duplicate number {member.value}: {self._what} {place(member)} has it, and "
                    f"so has {place(taken)}. Give {member.name} a number of its own."
                )
        # Of a reloaded module: members that the new class dropped must go.
        for number in [n for n, member in self.members.items() if type(member) is former]:
            del self.members[number]
        self.classes[class_name(kind)] = kind
        self.members.update({member.value: member for member in kind})

    def __iter__(self) -> Iterator[M]:
        return iter(self.members.values())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Undo at the end what was declared inside the block."""
        before = dict(self.classes), dict(self.members)
        try:
            yield
        finally:
            self.classes, self.members = before


def class_name(kind: type[IntEnum]) -> str:
    """Return a class's name with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def full_name(member: IntEnum) -> str:
    """Return a member as ``Category.ORGANIZATION_UPDATE``."""
    return f"{type(member).__name__}.{member.name}"


def place(member: IntEnum) -> str:
    """Return a member's full name with its module, for errors about two apps."""
    return f"{class_name(type(member))}.{member.name}"


def check_numbers(kind: type[IntEnum], what: str) -> None:
    """Refuse two names with one number, and numbers out of range."""
    for name, member in kind.__members__.items():
        # Python makes the second of two equal numbers a silent alias of the first.
        if member.name != name:
            raise ConfigurationError(
                f"Duplicate number {member.value}: {what} {kind.__name__}.{name} has it, and so "
                f"has {full_name(member)}. Give {name} a number of its own."
            )
        ours = kind.__module__.startswith("hybridcloud.")
        if member.value < 0 or (member.value > _MOST and not ours):
            raise ConfigurationError(
                f"Number {member.value} out of range: {what} {place(member)}. Use 0 to {_MOST}; "
                f"higher numbers belong to the framework."
            )


def check_scopes(kind: type[OutboxScope], categories: type[OutboxCategory] | None) -> None:
    """Refuse wrong scopes, and categories that are not in exactly one."""
    if categories is None or not categories.__members__:
        raise ConfigurationError(
            f"No categories named by scope class {class_name(kind)}. Declare it as "
            f"class {kind.__name__}(OutboxScope, categories=Category)."
        )
    owners: dict[int, OutboxScope] = {}
    for scope in kind:
        _check_scope(scope, categories)
        for category in scope.policy.categories | scope.policy.retired:
            if (other := owners.setdefault(category.value, scope)) is not scope:
                raise ConfigurationError(
                    f"Category in two scopes: {full_name(category)} is in {place(other)} and in "
                    f"{full_name(scope)}. Leave it in one of them."
                )
    if missing := [full_name(each) for each in categories if each.value not in owners]:
        raise ConfigurationError(
            f"Category in no scope: {', '.join(missing)}, of {class_name(kind)}. Add it to the "
            f"categories, or to retired, of one scope."
        )


def _check_scope(scope: OutboxScope, categories: type[OutboxCategory]) -> None:
    declaration, policy = scope.declaration, scope.policy
    if declaration is None:
        raise ConfigurationError(
            f"Scope without categories: {place(scope)} is {scope.value!r}. Declare it as "
            f"{scope.name} = scope_categories({scope.value}, {{…}})."
        )
    for category in policy.categories | policy.retired:
        if not isinstance(category, categories):
            shown, name = type(category).__name__, getattr(category, "name", repr(category))
            raise ConfigurationError(
                f"Foreign category: {shown}.{name} in scope {place(scope)} is not a member of "
                f"{categories.__name__}, which the scope class names. Give it a scope in a class "
                f"with categories={shown}."
            )
    if both := policy.categories & policy.retired:
        raise ConfigurationError(
            f"Category in use and retired: {full_name(min(both))} in scope {place(scope)}. Leave "
            f"it in one of the two."
        )
    for mistake in declaration.mistakes():
        raise ConfigurationError(f"Wrong scope {place(scope)}: {mistake}.")
