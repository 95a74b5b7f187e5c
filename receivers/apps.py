"""The Django app `receivers`.

`ready()` has exactly these side effects: the models' own handlers are
connected, each app's `outbox_receivers` is imported, RPC services are checked,
and the system checks are registered.
"""

from __future__ import annotations

from django.apps import AppConfig


class ReceiversConfig(AppConfig):
    """Connects the receivers of outbox messages."""

    name = "receivers"
    label = "hybridcloud_receivers"
    verbose_name = "Hybrid cloud receivers"

    def ready(self) -> None:
        """Run once, when all models are loaded."""
        # Django app registry: the handlers are methods of models.
        from hybridcloud.rpc.service import check_all  # noqa: PLC0415
        from receivers import autodiscover, checks  # noqa: PLC0415
        from receivers.outbox import cell, control  # noqa: PLC0415

        cell.connect_models()
        control.connect_models()
        autodiscover.import_receivers()
        # After the receivers are imported, because they import the services that they call.
        check_all()
        checks.register_all()
