"""Categories: what kind of change a message is about.

Users subclass `OutboxCategory`. Mistakes fail at import: a wrong number that reached a table
cannot be taken back.
"""

from __future__ import annotations

import enum
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps

from hybridcloud.conf import settings
from hybridcloud.errors import InvalidOutboxError
from hybridcloud.outbox.declare.identifiers import own_id, shard_of
from hybridcloud.outbox.declare.scope import (
    OutboxScope,
    is_retired,
    map_categories,
    scope_name,
    scope_of,
    scopes,
)
from hybridcloud.outbox.declare.validation import Declared, check_numbers, full_name, place
from hybridcloud.registry import Registry
from silos import SiloMode
from silos.cells import get_cell

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from django.db.models import Model

    from hybridcloud.outbox.models import CellOutboxBase, ControlOutboxBase

type Payload = Mapping[str, Any] | None
type CellMessage = CellOutboxBase
"""An unsaved message of a cell's outbox."""
type ControlMessage = ControlOutboxBase
"""An unsaved message of control's outbox, for one cell."""


class OutboxCategory(enum.IntEnum):
    """What kind of change a message is about; subclass it with members.

    Numbers are 0 to 9999, unique among all installed apps, and never reused.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__members__:
            check_numbers(cls, "category")
            _categories.add(cls)

    def get_scope(self) -> OutboxScope:
        """Return the scope of the category.

        Raises:
            InvalidOutboxError: no scope class names this class of categories.
        """
        scope = scope_of(self.value)
        if scope is None:
            raise InvalidOutboxError(
                f"No scope for category {place(self)}: no subclass of OutboxScope that was "
                f"imported has categories={type(self).__name__}. Declare one next to it."
            )
        return scope

    @staticmethod
    def infer_identifiers(
        scope: OutboxScope,
        model: Model | None,
        *,
        object_identifier: int | None = None,
        shard_identifier: int | None = None,
    ) -> tuple[int, int]:
        """Return the shard and object identifiers of a message about a model.

        Raises:
            IdentifierError: one is not given and cannot be inferred.
        """
        if object_identifier is None:
            object_identifier = own_id(scope, model)
        if shard_identifier is None:
            shard_identifier = shard_of(scope, model)
        return shard_identifier, object_identifier

    def as_cell_outbox(
        self,
        model: Model | None = None,
        *,
        payload: Payload = None,
        shard_identifier: int | None = None,
        object_identifier: int | None = None,
        outbox: type[CellMessage] | None = None,
        delay: timedelta | float | None = None,
    ) -> CellMessage:
        """Make an unsaved message of this category for a cell's outbox.

        Args:
            model: what the message is about; None where both identifiers are given.
            payload: JSON that the handler gets.
            shard_identifier: overrides the model's.
            object_identifier: overrides the model's id.
            outbox: the table; default the first one of the settings.
            delay: how long to wait, a timedelta or seconds, by the database's clock.

        Raises:
            IdentifierError: an identifier is not given and cannot be inferred.
        """
        kind = outbox or cast("type[CellOutboxBase]", _default_outbox(SiloMode.CELL))
        made = kind(**self._columns(model, payload, shard_identifier, object_identifier))
        made.delay = _as_delay(delay)
        return made

    def as_control_outboxes(
        self,
        cell_names: Collection[str],
        model: Model | None = None,
        *,
        payload: Payload = None,
        shard_identifier: int | None = None,
        object_identifier: int | None = None,
        outbox: type[ControlMessage] | None = None,
        delay: timedelta | float | None = None,
    ) -> list[ControlMessage]:
        """Make one unsaved message of this category for each of the cells.

        The other arguments are those of `as_cell_outbox`.

        Raises:
            IdentifierError: an identifier is not given and cannot be inferred.
            UnknownCellError: the settings have no such cell.
        """
        kind = outbox or cast("type[ControlOutboxBase]", _default_outbox(SiloMode.CONTROL))
        columns = self._columns(model, payload, shard_identifier, object_identifier)
        made = []
        for name in sorted(set(cell_names)):
            # Refused here: a message for a cell that does not exist would wait for ever.
            get_cell(name)
            message = kind(cell_name=name, **columns)
            message.delay = _as_delay(delay)
            made.append(message)
        return made

    def _columns(
        self, model: Model | None, payload: Payload, shard: int | None, about: int | None
    ) -> dict[str, Any]:
        scope = self.get_scope()
        shard, about = OutboxCategory.infer_identifiers(
            scope, model, object_identifier=about, shard_identifier=shard
        )
        return {
            "shard_scope": scope.value,
            "shard_identifier": shard,
            "category": self.value,
            "object_identifier": about,
            "payload": payload,
        }

    def connect_cell_model_updates(self, model: type[Model]) -> None:
        """Have a model's own handlers handle this category in cells.

        Raises:
            RegistryError: another model has the category.
        """
        connected_models.add(self, model)
        _connected_modes[self.value] = SiloMode.CELL

    def connect_control_model_updates(self, model: type[Model]) -> None:
        """Have a model's own handlers handle this category in control.

        Raises:
            RegistryError: another model has the category.
        """
        connected_models.add(self, model)
        _connected_modes[self.value] = SiloMode.CONTROL


_categories: Declared[OutboxCategory] = Declared("category")
_connected_modes: dict[int, SiloMode] = {}

connected_models: Registry[OutboxCategory, type[Model]] = Registry("model of the outbox category")
"""The model whose handlers handle a category; filled when models are declared."""


def find_category(number: int) -> OutboxCategory | None:
    """Return the category with this number; None if the code has none."""
    return _categories.members.get(number)


def category_name(number: int) -> str:
    """Return a category's name, or ``category 7`` if the code has none."""
    category = _categories.members.get(number)
    return f"category {number}" if category is None else category.name


def all_categories() -> tuple[OutboxCategory, ...]:
    """Return the categories of all apps."""
    return tuple(_categories.members.values())


def category_choices() -> list[tuple[int, str]]:
    """Return a category column's choices; new ones do not need a migration."""
    return sorted((each.value, each.name) for each in _categories)


def categories_without_scope() -> tuple[type[OutboxCategory], ...]:
    """Return the category classes that no scope class names."""
    kinds = _categories.classes.values()
    return tuple(kind for kind in kinds if any(scope_of(each.value) is None for each in kind))


def validated_scope(scope_number: int, category_number: int) -> OutboxScope:
    """Return the scope of a message that is about to be written.

    Raises:
        InvalidOutboxError: the category is not in the scope, or one is unknown or retired.
    """
    scope, category = scopes.members.get(scope_number), _categories.members.get(category_number)
    if scope is not None and scope_of(category_number) is scope:
        if not is_retired(category_number):
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
        f"as_control_outboxes(), which use the right one."
    )


def connected_mode(category: OutboxCategory) -> SiloMode | None:
    """Return the silo mode for which a category's model was connected."""
    return _connected_modes.get(category.value)


@contextmanager
def restored_declarations() -> Iterator[None]:
    """Undo at the end what was declared inside the block; for tests."""
    modes = dict(_connected_modes)
    try:
        with connected_models.opened(), _categories.restored(), scopes.restored():
            yield
    finally:
        _connected_modes.clear()
        _connected_modes.update(modes)
        # Last, from the scopes that are left.
        map_categories()


def _as_delay(delay: timedelta | float | None) -> timedelta | None:
    return timedelta(seconds=delay) if isinstance(delay, int | float) else delay


def _default_outbox(mode: SiloMode) -> type[Model]:
    # By its label, since the models module imports this one.
    return apps.get_model(settings().outbox_models[mode.name][0])
