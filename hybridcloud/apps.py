"""The Django app `hybridcloud`.

`ready()` lists every side effect of installing the framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

from hybridcloud.checks.driver import require_driver

if TYPE_CHECKING:
    from types import ModuleType


class HybridCloudConfig(AppConfig):
    """Requires a driver, freezes the registries, sets up telemetry and kick."""

    name = "hybridcloud"
    label = "hybridcloud"
    verbose_name = "Hybrid cloud"
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        # All apps are made before any model is imported. The first model would load Django's
        # backend, which says only "Error loading psycopg2 or psycopg module".
        require_driver()

    def ready(self) -> None:
        """Run once, when all models are loaded."""
        from hybridcloud import checks, telemetry  # noqa: PLC0415 - Django app registry
        from hybridcloud.backfill import tasks as backfill  # noqa: PLC0415 - Django app registry
        from hybridcloud.conf import settings  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.deliver import tasks  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.deliver.flush import deliver  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.deliver.kick import kicker  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.triggers import checks as trigger_checks  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.write.after_commit import on_committed  # noqa: PLC0415 - Django app registry
        from hybridcloud.outbox.write.registration import (  # noqa: PLC0415 - Django app registry
            freeze_connected_models,
        )
        from hybridcloud.rpc import breaker  # noqa: PLC0415 - Django app registry
        from hybridcloud.tombstones import cascade  # noqa: F401, PLC0415 - Django app registry
        from hybridcloud.tombstones import tasks as cascades  # noqa: F401, PLC0415 - Django app registry

        settings()
        freeze_connected_models()
        on_committed.fill(deliver)
        kicker.fill(tasks.send_kick)
        backfill.connect()
        trigger_checks.connect(self)
        breaker.fill_slot()
        telemetry.install()
        checks.register_all()
