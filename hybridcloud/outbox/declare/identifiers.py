"""Infers the shard and object identifiers of a message from a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import ForeignKey, IntegerField, Model

from hybridcloud.errors import IdentifierError
from hybridcloud.outbox.declare.validation import full_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Field

    from hybridcloud.outbox.declare.scope import OutboxScope


def own_id(scope: OutboxScope, model: Model | None) -> int:
    """Return the object identifier of a message about a model: its id."""
    instance = _given(scope, model, "object")
    if (identifier := _as_integer(instance.pk, type(instance)._meta.pk)) is None:
        why = "it is not saved" if instance.pk is None else f"its primary key is {instance.pk!r}"
        raise _error("object", scope, instance, f"{why}, and an integer is needed. Save it first")
    return identifier


def shard_of(scope: OutboxScope, model: Model | None) -> int:
    """Return the shard identifier of a message about a model."""
    instance = _given(scope, model, "shard")
    return _shard_at(scope, instance, shard_path(scope, type(instance)))


def identifiers_of(scope: OutboxScope, model: type[Model]) -> Callable[[Model], tuple[int, int]]:
    """Return a function from instances of a model to their (shard, object)."""
    path = shard_path(scope, model)
    return lambda instance: (_shard_at(scope, instance, path), own_id(scope, instance))


def shard_path(scope: OutboxScope, model: type[Model]) -> str | None:
    """Return the path of attributes from an instance to its shard identifier.

    It is ``pk`` for the scope's owner. A model's own ``shard_key`` wins over the scope's.
    """
    own = getattr(model, "shard_key", None)
    if isinstance(own, str):
        return own
    owner = (scope.policy.owner or "").lower()
    family = (model, model._meta.concrete_model, *model._meta.get_parent_list())
    if owner and any(each is not None and each._meta.label_lower == owner for each in family):
        return "pk"
    return scope.policy.shard_key


def shard_field(scope: OutboxScope, model: type[Model]) -> Field[Any, Any] | None:
    """Return the model's column with the shard identifier, if it is one."""
    path = shard_path(scope, model)
    if path == "pk":
        return model._meta.pk
    return next((field for field in model._meta.concrete_fields if field.attname == path), None)


def _given(scope: OutboxScope, model: Model | None, what: str) -> Model:
    if model is None:
        raise IdentifierError(
            f"No {what} identifier for a message of {full_name(scope)}: neither a model nor "
            f"{what}_identifier= was given. Give one of them."
        )
    return model


def _shard_at(scope: OutboxScope, model: Model, path: str | None) -> int:
    if path is None:
        why = "the scope has no shard_key. Give it one, set shard_key on the model"
        raise _error("shard", scope, model, why)
    value: object = model
    owner: object = model
    attribute = path
    for attribute in path.split("."):
        try:
            owner, value = value, getattr(value, attribute)
        except (AttributeError, ObjectDoesNotExist) as exc:
            where = "it" if value is model else type(value).__name__
            why = (
                f"{where} has no {attribute!r} (shard key {path!r}). Set shard_key on the model to "
                f"the path of an attribute that it has"
            )
            raise _error("shard", scope, model, why) from exc
    identifier = _as_integer(value, None if type(value) is int else _field_of(owner, attribute))
    if identifier is None:
        why = f"{path!r} is {value!r}, and an integer is needed. Set it"
        raise _error("shard", scope, model, why)
    return identifier


def is_integer(field: Any) -> bool:
    """Say whether a column holds integers, also through foreign keys."""
    while isinstance(field, ForeignKey):
        field = field.target_field
    return isinstance(field, IntegerField)


def _field_of(instance: object, attribute: str) -> Field[Any, Any] | None:
    if not isinstance(instance, Model):
        return None
    if attribute == "pk":
        return instance._meta.pk
    fields = instance._meta.concrete_fields
    return next((each for each in fields if attribute in (each.attname, each.name)), None)


def _as_integer(value: object, field: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    # A form or a URL gives ids as text. Of a column of text they would be others: "00042" is not 42.
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal()
    return int(str(value)) if is_number and is_integer(field) else None


def _error(what: str, scope: OutboxScope, model: Model, why: str) -> IdentifierError:
    about = f"a message of {full_name(scope)} about {model._meta.label}"
    return IdentifierError(f"No {what} identifier for {about}: {why}, or give {what}_identifier=.")
