"""Reports the engine's work to metrics backends and error trackers."""

from __future__ import annotations

from hybridcloud import hooks
from hybridcloud.telemetry.metrics import MetricsListener
from hybridcloud.telemetry.metrics import use_backend as use_backend
from hybridcloud.telemetry.sentry import SentryListener

__all__ = ["install", "use_backend"]

_LISTENERS = (MetricsListener(), SentryListener())


def install() -> None:
    """Install the listeners of the engine's facts; safe to call twice.

    Called when the apps are ready.
    """
    for listener in _LISTENERS:
        hooks.install(listener)
