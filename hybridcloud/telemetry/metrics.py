"""The metrics of the outbox, under the reference's names.

========================= ====== ======================================================
``outbox.saved``          count  messages committed; tag ``category``
``outbox.processed``      count  messages removed, including coalesced and retired ones
``outbox.processing_lag`` timing from due to acknowledged, once per handler call
========================= ====== ======================================================

The last two are tagged with ``category`` and ``synchronous`` (``1`` if the
writer's own flush did the work, otherwise ``0``). Facts come once per batch, so
a backend is called a few times per hundreds of messages.
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
    """The interface of a metrics backend (StatsD, Datadog, Prometheus).

    Its methods are called on the threads that write and drain.
    """

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        """Add to a counter."""

    def timing(self, name: str, seconds: Spread, tags: Mapping[str, str]) -> None:
        """Record the times of several messages, summed up."""


_backend: Backend | None = None


def use_backend(backend: Backend | None) -> None:
    """Send the metrics of this process to a backend; None: to none (default).

    Call it in your `AppConfig.ready`::

        from hybridcloud.telemetry import use_backend
        from hybridcloud.telemetry.prometheus import PrometheusBackend

        use_backend(PrometheusBackend())
    """
    global _backend  # noqa: PLW0603 - one per process, like the listener
    _backend = backend


class MetricsListener(Hooks):
    """Reports saved and processed messages and their lag to the backend."""

    def saved(self, fact: Saved) -> None:
        """Count messages that were committed."""
        if _backend is None:
            return
        for category, count in fact.counts.items():
            _backend.count(SAVED, count, {"category": category_name(category)})

    def handled(self, fact: Handled) -> None:
        """Count messages that were removed, and record their lag."""
        if _backend is None:
            return
        synchronous = "1" if fact.synchronous else "0"
        for category, count in (Counter(fact.messages) + Counter(fact.retired)).items():
            tags = {"category": category_name(category), "synchronous": synchronous}
            _backend.count(PROCESSED, count, tags)
        for category, spread in fact.lag.items():
            tags = {"category": category_name(category), "synchronous": synchronous}
            _backend.timing(PROCESSING_LAG, spread, tags)
