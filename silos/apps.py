"""The Django app `silos`.

`ready()` has exactly these side effects: the directory is read and cached, every database
connection is guarded, and the system checks are registered.
"""

from __future__ import annotations

from contextlib import suppress

from django.apps import AppConfig

from . import guard
from .directory import directory
from .errors import SiloConfigurationError


class SilosConfig(AppConfig):
    """The app config of `silos`."""

    name = "silos"
    label = "silos"
    verbose_name = "Silos"

    def ready(self) -> None:
        """Freeze the directory, guard connections, register the checks."""
        # Django app registry: the checks inspect models.
        from . import checks  # noqa: PLC0415

        checks.register_all()
        guard.install()
        # The checks silos.E004 and E007 report a wrong setting; the first use raises it again.
        with suppress(SiloConfigurationError):
            directory()
