"""Checks that every change of a producing model's rows writes a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's
from django.core.exceptions import FieldDoesNotExist
from django.db.models import ForeignKey

from hybridcloud.errors import InvalidOutboxError
from hybridcloud.outbox.declare.category import categories_without_scope
from hybridcloud.outbox.declare.identifiers import is_integer, shard_path
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.write.deletions import uncovered_relations
from hybridcloud.outbox.write.mixins import ProducingModel
from hybridcloud.outbox.write.querysets import is_producing
from hybridcloud.outbox.write.registration import root_of
from hybridcloud.outbox.write.replicated import has_own_handlers
from silos.limits import limit_name, silo_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig
    from django.db.models import Model


def check_scopes(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E003: every category has a scope.

    Messages of a category without a scope cannot be written.
    """
    return [
        Error(
            f"No scope for the categories of {kind.__module__}.{kind.__qualname__}.",
            hint=f"Declare a class Scope(OutboxScope, categories={kind.__name__}) beside it.",
            obj=kind,
            id="hybridcloud.E003",
        )
        for kind in categories_without_scope()
    ]


_OWNERS: Final = ("organization", "user")


def check_switches(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W048: an organization's or a user's shards can be stopped."""
    return [
        Warning(
            f"{scope.name} is keyed by an {owner}'s id, and no switch of {owner}s stops it."
            if owner == "organization"
            else f"{scope.name} is keyed by a user's id, and no switch of users stops it.",
            hint=f'Say so in its declaration: scope_categories(…, switch="{owner}").',
            obj=scope,
            id="hybridcloud.W048",
        )
        for scope in all_scopes()
        for owner in _OWNERS
        if scope.switch is None
        and (
            scope.policy.shard_key == f"{owner}_id"
            or (scope.policy.owner or "").lower().endswith(f".{owner}")
        )
    ]


def check_producing_models(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """hybridcloud.E003 to E006 and E014 to E016, for every producing model."""
    configs = apps.get_app_configs() if app_configs is None else app_configs
    return [
        message
        for config in configs
        for model in config.get_models()
        if issubclass(model, ProducingModel)
        for message in _check(model)
    ]


def _check(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    yield from _check_managers(model)
    # Proxies and multi-table children share everything else with their root.
    if model is not root_of(model):
        return
    yield from _check_silo(model)
    yield from _check_relations(model)
    if model.has_default_messages():
        yield from _check_identifiers(model)
    if model.is_replicated:
        yield from _check_shard_key(model)
        yield from _check_handlers(model)


def _check_silo(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    lives_in, writes_to = silo_of(model), model.outbox_model().silo_mode
    if lives_in is not writes_to:
        yield Error(
            f"{model._meta.label} lives in {limit_name(lives_in)}, its outbox in "
            f"{limit_name(writes_to)}.",
            hint="Change and message must commit together: use the mixin, the outbox_type and "
            "the silo decorator of the same silo.",
            obj=model,
            id="hybridcloud.E004",
        )


def _check_managers(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    for name, manager in (
        ("base manager", model._base_manager),
        ("default manager", model._default_manager),
    ):
        if not is_producing(manager):
            yield Error(
                f"The {name} of {model._meta.label} writes no messages: it is a "
                f"{type(manager).__name__}.",
                hint="Put the mixin first among the bases, and derive `objects` from both its "
                "manager and yours. Additional managers need not produce messages.",
                obj=model,
                id="hybridcloud.E006",
            )


def _check_relations(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    for field, reason in uncovered_relations(model):
        in_database = getattr(field.remote_field.on_delete, "__name__", "").startswith("DB_")
        yield Error(
            f"A deletion through {field} would write no message: {reason}.",
            hint="Use one of Django's own, such as CASCADE, SET_NULL or PROTECT"
            + (", or let triggers write the model's messages." if in_database else "."),
            obj=field,
            id="hybridcloud.E016" if in_database else "hybridcloud.E015",
        )


def _check_identifiers(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    """Refuse keys that are not integers, at start and not at the first save."""
    for what, field in (("object", model._meta.pk), ("shard", _end_of_path(model))):
        if field is not None and not is_integer(field):
            yield Error(
                f"No {what} identifier for messages of {model._meta.label}: {field.name} of "
                f"{field.model._meta.label} is a {type(field).__name__}, and an integer is needed.",
                hint="Use an integer key, or make the messages yourself in outbox_for_update().",
                obj=model,
                id="hybridcloud.E017",
            )


def _end_of_path(model: type[ProducingModel]) -> Any:
    """Return the column at the end of the path to the shard, if it is one."""
    try:
        path = shard_path(model.category.get_scope(), model)
    except (AttributeError, InvalidOutboxError):
        return None
    owner: Any = model
    field: Any = None
    for attribute in (path or "").split("."):
        if owner is None:
            return None
        if attribute == "pk":
            field = owner._meta.pk
        else:
            names = owner._meta.concrete_fields
            field = next((each for each in names if attribute in (each.attname, each.name)), None)
        is_object = isinstance(field, ForeignKey) and attribute == field.name
        owner = field.related_model if is_object else None
    return field


def _check_handlers(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    if not has_own_handlers(model):
        yield Error(
            f"{model._meta.label} is replicated by handlers that do nothing: its messages are lost.",
            hint="Override handle_async_replication() and handle_async_deletion().",
            obj=model,
            id="hybridcloud.E014",
        )


def _check_shard_key(model: type[ProducingModel]) -> Iterator[CheckMessage]:
    if not model.has_default_messages():
        # The model creates its own messages and may set their shard there.
        return
    try:
        scope = model.category.get_scope()
    except InvalidOutboxError:
        yield Error(
            f"The category {model.category.name} of {model._meta.label} has no scope.",
            hint="Declare a scope class for its class: class Scope(OutboxScope, categories=…).",
            obj=model,
            id="hybridcloud.E003",
        )
        return
    path = shard_path(scope, model)
    missing = "no shard_key at all" if path is None else _missing(model, path)
    if missing:
        yield Error(
            f"No shard for messages of {model._meta.label}: {scope.name} has {missing}.",
            hint="Set shard_key on the model to the path of an existing attribute.",
            obj=model,
            id="hybridcloud.E005",
        )


def _missing(model: type[Model], path: str) -> str | None:
    """Return what is missing on a path, in words.

    None if the path exists, or if only an instance could tell.
    """
    kind: Any = model
    for attribute in path.split("."):
        if not hasattr(kind, attribute):
            return f"shard key {path!r}, but {kind._meta.label} has no {attribute!r}"
        try:
            kind = kind._meta.get_field(attribute).related_model
        except FieldDoesNotExist:
            return None
        if kind is None:
            return None
    return None
