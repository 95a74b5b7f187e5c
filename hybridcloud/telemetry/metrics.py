"""Turns facts into the metrics that the reference's operators know: without it their graphs would be empty.

========================= ====== ================================================
``outbox.saved``          count  messages committed; tag ``category``
``outbox.processed``      count  messages gone, coalesced and retired ones too
``outbox.processing_lag`` timing from due to acknowledged, once per handler call
========================= ====== ================================================

The last two are tagged with ``category`` and ``synchronous`` (``1`` where the
writer's own flush did it, else ``0``). Facts come once per batch, so that a
backend is called a few times per hundreds of messages.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from hybridcloud.hooks import Hooks
from hybridcloud.outbox.declare.category import category_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridcloud.hooks import Handled, Saved, Spread

SAVED: Final = "outbox.saved"
PROCESSED: Final = "outbox.processed"
PROCESSING_LAG: Final = "outbox.processing_lag"


class Backend(Protocol):
    """Where metrics go: StatsD, Datadog, Prometheus. Called on the threads that write and drain."""

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        """Add to a counter."""

    def timing(self, name: str, seconds: Spread, tags: Mapping[str, str]) -> None:
        """Note the times of several messages, summed up."""


_backend: Backend | None = None


def use_backend(backend: Backend | None) -> None:
    """Send metrics to a backend from now on, in this process; None: nowhere, as at first.

    Call it in your `AppConfig.ready`::

        from hybridcloud.telemetry import use_backend
        from hybridcloud.telemetry.prometheus import PrometheusBackend

        use_backend(PrometheusBackend())
    """
    global _backend  # noqa: PLW0603 - one per process, like the listener
    _backend = backend


class MetricsListener(Hooks):
    """Counts what was saved and processed, and how late."""

    def saved(self, fact: Saved) -> None:
        """Count messages that were committed."""
        if _backend is None:
            return
        for category, count in fact.counts.items():
            _backend.count(SAVED, count, {"category": category_name(category)})

    def handled(self, fact: Handled) -> None:
        """Count messages that are gone, and note their lag."""
        if _backend is None:
            return
        synchronous = "1" if fact.synchronous else "0"
        for category, count in (Counter(fact.messages) + Counter(fact.retired)).items():
            tags = {"category": category_name(category), "synchronous": synchronous}
            _backend.count(PROCESSED, count, tags)
        for category, spread in fact.lag.items():
            tags = {"category": category_name(category), "synchronous": synchronous}
            _backend.timing(PROCESSING_LAG, spread, tags)
