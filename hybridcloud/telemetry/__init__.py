"""Tells metrics backends and error trackers what the engine did; without it operators would be blind."""

from __future__ import annotations

from hybridcloud import hooks
from hybridcloud.telemetry.metrics import MetricsListener
from hybridcloud.telemetry.metrics import use_backend as use_backend
from hybridcloud.telemetry.sentry import SentryListener

__all__ = ["install", "use_backend"]

_LISTENERS = (MetricsListener(), SentryListener())


def install() -> None:
    """Listen to the engine's facts; called once the apps are ready, and safe to call again."""
    for listener in _LISTENERS:
        hooks.install(listener)
