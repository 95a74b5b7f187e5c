"""The Django app of `silos`; without it neither guard nor checks are in place.

Side effects of `ready()`, all of them: the directory is read and kept, every database connection is
guarded, the system checks are registered.
"""

from __future__ import annotations

from contextlib import suppress

from django.apps import AppConfig

from . import guard
from .directory import directory
from .errors import SiloConfigurationError


class SilosConfig(AppConfig):
    """Silos: control and cells."""

    name = "silos"
    label = "silos"
    verbose_name = "Silos"

    def ready(self) -> None:
        """Freeze the directory, guard connections, register the checks."""
        # The Django app registry: checks look at models.
        from . import checks  # noqa: PLC0415

        checks.register_all()
        guard.install()
        # A wrong setting is reported by the check silos.E004 or E007, and by whoever asks first.
        with suppress(SiloConfigurationError):
            directory()
