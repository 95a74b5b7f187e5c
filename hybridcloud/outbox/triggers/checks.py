"""Installs triggers after migrate, and checks them against the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import checks
from django.db.models.signals import post_migrate

from hybridcloud.outbox.triggers.bodies import problem_of
from hybridcloud.outbox.triggers.install import differences, install, triggered_models
from hybridcloud.outbox.triggers.runtime import triggered
from hybridcloud.outbox.write.messages import is_triggered
from hybridcloud.outbox.write.messages import triggered as around_change
from hybridcloud.outbox.write.registration import producing_models

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.apps import AppConfig


def connect(app: AppConfig) -> None:
    """Connect the installation and the checks; called once apps are ready."""
    around_change.fill(triggered)
    post_migrate.connect(_after_migrate, sender=app, dispatch_uid="hybridcloud.outbox.triggers")
    checks.register(check_models, "hybridcloud")
    checks.register(check_triggers, "hybridcloud", checks.Tags.database)


def check_models(app_configs: Iterable[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Return an error for each model whose messages triggers cannot write."""
    del app_configs
    return [
        checks.Error(
            f"Triggers cannot write its messages: {problem}.",
            hint="Change that, or leave outbox_via out: the mixin then writes them.",
            obj=model,
            id="hybridcloud.E045",
        )
        for model in producing_models()
        if is_triggered(model) and (problem := problem_of(model)) is not None
    ]


def check_triggers(
    app_configs: Iterable[AppConfig] | None, *, databases: Iterable[str] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """Return a warning for each model whose triggers differ from it."""
    del app_configs
    return [
        checks.Warning(
            f"Outbox triggers on {alias!r} differ from the model: {wrong[0]}.",
            hint=f"Run migrate --database {alias}; {len(wrong)} difference(s).",
            obj=model,
            id="hybridcloud.W044",
        )
        for alias in databases or ()
        for model in triggered_models(alias)
        if problem_of(model) is None and (wrong := differences(model, alias))
    ]


def _after_migrate(*, using: str, **_: Any) -> None:
    install(using)
