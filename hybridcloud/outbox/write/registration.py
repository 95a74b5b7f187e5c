"""The producing models, and what is connected for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models.signals import class_prepared

from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox.declare.category import OutboxCategory, connected_models
from hybridcloud.outbox.write.context import flush_choice
from hybridcloud.outbox.write.deletions import listen_to_deletions, update_through_managers
from hybridcloud.outbox.write.messages import columns_payload, is_triggered, uses_default
from silos import SiloMode
from silos.limits import limit_name, silo_of

if TYPE_CHECKING:
    from django.db.models import Model

    from hybridcloud.outbox.write.mixins import ProducingModel

_roots: list[type[ProducingModel]] = []


def producing_models() -> tuple[type[ProducingModel], ...]:
    """Return the producing models, without proxies and multi-table children."""
    return tuple(_roots)


def root_of(model: type[ProducingModel]) -> type[ProducingModel]:
    """Return the root of a proxy or multi-table child, else the model."""
    concrete: Any = model._meta.concrete_model
    for each in (*concrete._meta.get_parent_list(), concrete):
        if _is_producing(each) and not any(map(_is_producing, each._meta.get_parent_list())):
            return each  # type: ignore[no-any-return]
    return model


def register(model: type[ProducingModel]) -> None:
    """Connect a producing model that Django has just prepared.

    A category that another model has is a `RegistryError`.
    """
    _check_flush(model)
    root = root_of(model)
    update_through_managers(model)
    concrete: Any = model._meta.concrete_model
    if is_triggered(model):
        if model.trigger_payload and uses_default(model, "payload_for_update"):
            # A backfill writes without the triggers, and its payload must be the same as theirs.
            model.payload_for_update = columns_payload  # type: ignore[assignment, method-assign]
    elif model is root or concrete is root:
        # Not for a multi-table child: its deletion is also its root's, and one message is enough.
        listen_to_deletions(model)
    if model is root:
        _roots.append(model)
    if not model.is_replicated:
        return
    category: Any = getattr(model, "category", None)
    if not isinstance(category, OutboxCategory):
        raise ConfigurationError(
            f"No category of {model._meta.label}: it is {category!r}. Set category on the class to "
            f"a member of your OutboxCategory."
        )
    if model is root:
        if model.silo_mode is SiloMode.CELL:
            category.connect_cell_model_updates(model)
        else:
            category.connect_control_model_updates(model)
    elif category != root.category:
        raise ConfigurationError(
            f"Another category of {model._meta.label}: it is {category.name}, and {root._meta.label}"
            f", whose rows it shares, has {root.category.name}. Leave it out on the child."
        )


def _check_flush(model: type[ProducingModel]) -> None:
    try:
        flush_choice(model.default_flush)
    except ValueError as exc:
        raise ConfigurationError(f"Wrong default_flush of {model._meta.label}: {exc}") from exc


def freeze_connected_models() -> None:
    """Refuse later models, check the silos; called once apps are ready."""
    # Not in `register`: decorators limit a class to a silo after it is prepared.
    for model in _roots:
        limit = silo_of(model)
        if limit is not model.silo_mode:
            kind = "cell" if model.silo_mode is SiloMode.CELL else "control"
            raise ConfigurationError(
                f"Wrong silo of {model._meta.label}: it lives in {limit_name(limit)}, and its mixin "
                f"writes to the outbox of {limit_name(model.silo_mode)}. Decorate it with "
                f"@{kind}_silo_model, or take the other mixin."
            )
    connected_models.freeze()


def _is_producing(model: type[Model]) -> bool:
    return hasattr(model, "has_default_messages")


def _prepared(*, sender: Any, **_: Any) -> None:
    if _is_producing(sender):
        register(sender)


# The mixins import this module, so it listens before the first of their models is prepared.
class_prepared.connect(_prepared, dispatch_uid="hybridcloud.outbox.write.registration")
