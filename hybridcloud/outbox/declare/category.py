"""Categories and scopes: without them a message would be a pair of numbers that nobody checks.

A category says what kind of change a message is about, a scope what its shard
is keyed by and how the shard behaves. Users subclass both; mistakes fail at
import, because a wrong number that reached a table stays there.
"""

from __future__ import annotations

import enum
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast, overload

from django.apps import apps

from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError, InvalidOutboxError
from hybridcloud.outbox.declare import identifiers
from hybridcloud.outbox.declare.scope import (
    Delivery,
    OnFailure,
    Policy,
    ScopeDeclaration,
    scope_categories,
)
from hybridcloud.outbox.declare.validation import (
    Declared,
    check_numbers,
    check_scopes,
    full_name,
    place,
)
from hybridcloud.registry import Registry
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from django.db.models import Model

    from hybridcloud.outbox.models import CellOutboxBase, ControlOutboxBase

__all__ = [
    "Delivery",
    "OnFailure",
    "OutboxCategory",
    "OutboxScope",
    "Payload",
    "Policy",
    "all_categories",
    "all_scopes",
    "categories_without_scope",
    "category_choices",
    "category_name",
    "connected_mode",
    "connected_models",
    "find_category",
    "find_scope",
    "is_retired",
    "restored_declarations",
    "scope_categories",
    "scope_choices",
    "scope_name",
    "validated_scope",
]

type Payload = Mapping[str, Any] | None
type CellMessage = CellOutboxBase
"""A message of a cell's outbox, not saved yet."""
type ControlMessage = ControlOutboxBase
"""A message of control's outbox for one cell, not saved yet."""


class OutboxCategory(enum.IntEnum):
    """What kind of change a message is about; subclass it with your own members.

    Numbers are 0 to 9999, unique over all installed apps, and never reused.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__members__:
            check_numbers(cls, "category")
            _categories.add(cls)

    def get_scope(self) -> OutboxScope:
        """Return the scope of the category.

        Raises:
            InvalidOutboxError: no scope class names the category's class.
        """
        scope = _scope_by_category.get(self.value)
        if scope is None:
            raise InvalidOutboxError(
                f"No scope for category {place(self)}: no subclass of OutboxScope that was "
                f"imported has categories={type(self).__name__}. Declare one beside it."
            )
        return scope

    def infer_identifiers(
        self,
        scope: OutboxScope,
        model: Model | None,
        *,
        object_identifier: int | None = None,
        shard_identifier: int | None = None,
    ) -> tuple[int, int]:
        """Return the shard identifier and the object identifier of a message about a model.

        Raises:
            IdentifierError: one of them is not given and cannot be told.
        """
        return identifiers.infer_identifiers(
            scope, model, object_identifier=object_identifier, shard_identifier=shard_identifier
        )

    def as_cell_outbox(
        self,
        model: Model | None = None,
        *,
        payload: Payload = None,
        shard_identifier: int | None = None,
        object_identifier: int | None = None,
        outbox: type[CellMessage] | None = None,
    ) -> CellMessage:
        """Make a message of this category for a cell's outbox, not saved yet.

        Args:
            model: what the message is about; None where both identifiers are given.
            payload: JSON that the handler gets.
            shard_identifier: overrides what the model says.
            object_identifier: overrides the model's id.
            outbox: the table; default the first one of the settings.

        Raises:
            IdentifierError: an identifier is not given and cannot be told.
        """
        kind = outbox or cast("type[CellOutboxBase]", _default_outbox(SiloMode.CELL))
        return kind(**self._columns(model, payload, shard_identifier, object_identifier))

    def as_control_outboxes(
        self,
        cell_names: Collection[str],
        model: Model | None = None,
        *,
        payload: Payload = None,
        shard_identifier: int | None = None,
        object_identifier: int | None = None,
        outbox: type[ControlMessage] | None = None,
    ) -> list[ControlMessage]:
        """Make one message of this category for each cell, not saved yet; none for no cells.

        Args:
            cell_names: the cells that must hear of it.
            model: what the messages are about; None where both identifiers are given.
            payload: JSON that the handlers get.
            shard_identifier: overrides what the model says.
            object_identifier: overrides the model's id.
            outbox: the table; default the first one of the settings.

        Raises:
            IdentifierError: an identifier is not given and cannot be told.
        """
        kind = outbox or cast("type[ControlOutboxBase]", _default_outbox(SiloMode.CONTROL))
        columns = self._columns(model, payload, shard_identifier, object_identifier)
        return [kind(cell_name=name, **columns) for name in sorted(set(cell_names))]

    def _columns(
        self,
        model: Model | None,
        payload: Payload,
        shard_identifier: int | None,
        object_identifier: int | None,
    ) -> dict[str, Any]:
        scope = self.get_scope()
        shard, about = identifiers.infer_identifiers(
            scope, model, object_identifier=object_identifier, shard_identifier=shard_identifier
        )
        return {
            "shard_scope": scope.value,
            "shard_identifier": shard,
            "category": self.value,
            "object_identifier": about,
            "payload": payload,
        }

    def connect_cell_model_updates(self, model: type[Model]) -> None:
        """Let messages of this category in cells be handled by the model's own handlers.

        Raises:
            RegistryError: another model has the category.
        """
        _connect(self, model, SiloMode.CELL)

    def connect_control_model_updates(self, model: type[Model]) -> None:
        """Let messages of this category in control be handled by the model's own handlers.

        Raises:
            RegistryError: another model has the category.
        """
        _connect(self, model, SiloMode.CONTROL)


class OutboxScope(enum.IntEnum):
    """What a shard is keyed by; subclass it with members made by `scope_categories`.

    ::

        class Scope(OutboxScope, categories=Category):
            ORGANIZATION_SCOPE = scope_categories(0, {Category.ORGANIZATION_UPDATE})

    Attributes:
        policy: how the shards of the scope behave.
    """

    policy: Policy
    declaration: ScopeDeclaration | None

    @overload
    def __new__(cls, value: int, /) -> Self: ...
    @overload
    def __new__(cls, value: ScopeDeclaration, /) -> Self: ...
    def __new__(cls, value: int | ScopeDeclaration, /) -> Self:
        """Make a member of a declaration; called with a number, a scope class looks it up."""
        given = value if isinstance(value, ScopeDeclaration) else None
        number = value if isinstance(value, int) else value.number
        member = int.__new__(cls, number)
        member._value_ = number
        member.declaration = given
        member.policy = given.policy if given is not None else Policy()
        return member

    def __init_subclass__(
        cls, *, categories: type[OutboxCategory] | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__members__:
            return
        check_numbers(cls, "scope")
        check_scopes(cls, categories)
        for category in categories or ():
            _refuse_second_owner(cls, category)
        _scopes.add(cls)
        _map_categories()


_categories: Declared[OutboxCategory] = Declared("category")
_scopes: Declared[OutboxScope] = Declared("scope")
_scope_by_category: dict[int, OutboxScope] = {}
_retired: set[int] = set()
_connected_modes: dict[int, SiloMode] = {}

connected_models: Registry[OutboxCategory, type[Model]] = Registry("model of the outbox category")
"""The model whose handlers a category's messages are for; filled when models are declared."""


def find_category(number: int) -> OutboxCategory | None:
    """Return the category with this number; None where the running code does not know it."""
    return _categories.find(number)


def find_scope(number: int) -> OutboxScope | None:
    """Return the scope with this number; None where the running code does not know it."""
    return _scopes.find(number)


def is_retired(category_number: int) -> bool:
    """Say whether a scope retired the category: its messages are dropped."""
    return category_number in _retired


def category_name(number: int) -> str:
    """Return a category's name; of an unknown one its number in words."""
    category = _categories.find(number)
    return f"category {number}" if category is None else category.name


def scope_name(number: int) -> str:
    """Return a scope's name; of an unknown one its number in words."""
    scope = _scopes.find(number)
    return f"scope {number}" if scope is None else scope.name


def all_categories() -> tuple[OutboxCategory, ...]:
    """Return the categories of all apps."""
    return tuple(_categories)


def all_scopes() -> tuple[OutboxScope, ...]:
    """Return the scopes of all apps."""
    return tuple(_scopes)


def category_choices() -> list[tuple[int, str]]:
    """Return the choices of a category column; a callable, so a new one makes no migration."""
    return sorted((each.value, each.name) for each in _categories)


def scope_choices() -> list[tuple[int, str]]:
    """Return the choices of a scope column; a callable, so a new one makes no migration."""
    return sorted((each.value, each.name) for each in _scopes)


def categories_without_scope() -> tuple[type[OutboxCategory], ...]:
    """Return the category classes that no scope class names."""
    return tuple(
        kind
        for kind in _categories.classes()
        if any(each.value not in _scope_by_category for each in kind)
    )


def validated_scope(scope_number: int, category_number: int) -> OutboxScope:
    """Return the scope of a message that is about to be written.

    Raises:
        InvalidOutboxError: scope and category do not fit, or one is unknown or retired.
    """
    scope, category = _scopes.find(scope_number), _categories.find(category_number)
    if scope is not None and _scope_by_category.get(category_number) is scope:
        if category_number not in _retired:
            return scope
        raise InvalidOutboxError(
            f"Retired category {category_name(category_number)} of {full_name(scope)}: its "
            f"messages are dropped. Write a category that is in use."
        )
    if category is None:
        raise InvalidOutboxError(
            f"Unknown category {category_number} in {scope_name(scope_number)}: no subclass of "
            f"OutboxCategory that was imported has this number."
        )
    raise InvalidOutboxError(
        f"Category {full_name(category)} does not belong to {scope_name(scope_number)}: its scope "
        f"is {full_name(category.get_scope())}. Make messages with as_cell_outbox() or "
        f"as_control_outboxes(), which take the right one."
    )


def connected_mode(category: OutboxCategory) -> SiloMode | None:
    """Return whether a category's model was connected for cells or for control."""
    return _connected_modes.get(category.value)


@contextmanager
def restored_declarations() -> Iterator[None]:
    """Forget at the end what was declared inside the block; for tests."""
    categories, scopes = _categories.snapshot(), _scopes.snapshot()
    modes = dict(_connected_modes)
    with connected_models.opened():
        try:
            yield
        finally:
            _categories.restore(categories)
            _scopes.restore(scopes)
            _connected_modes.clear()
            _connected_modes.update(modes)
            _map_categories()


def _connect(category: OutboxCategory, model: type[Model], mode: SiloMode) -> None:
    connected_models.add(category, model)
    _connected_modes[category.value] = mode


def _refuse_second_owner(kind: type[OutboxScope], category: OutboxCategory) -> None:
    owner = _scope_by_category.get(category.value)
    if owner is None or category not in owner.policy.categories | owner.policy.retired:
        return
    if (type(owner).__module__, type(owner).__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigurationError(
            f"Category in two scopes: {full_name(category)} is in {place(owner)} and in scope "
            f"class {kind.__module__}.{kind.__qualname__}. Name the categories in one of them."
        )


def _map_categories() -> None:
    _scope_by_category.clear()
    _retired.clear()
    for scope in _scopes:
        _retired.update(each.value for each in scope.policy.retired)
        for each in scope.policy.categories | scope.policy.retired:
            _scope_by_category[each.value] = scope


def _default_outbox(mode: SiloMode) -> type[Model]:
    # By its label: the models module imports this one.
    return apps.get_model(settings().outbox_models[mode.name][0])
