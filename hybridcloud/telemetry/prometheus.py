"""A metrics backend for Prometheus: without it each project would write the same adapter.

Needs the package `prometheus-client`. What serves the numbers is yours: its
WSGI app, `start_http_server`, or a view of your own; with several processes set
its `PROMETHEUS_MULTIPROC_DIR`, which these metrics work with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hybridcloud.errors import ConfigurationError
from hybridcloud.telemetry.metrics import PROCESSED, PROCESSING_LAG, SAVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridcloud.hooks import Spread

_BUCKETS: Final = (0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
_SAVED_TAGS: Final = ("category",)
_TAGS: Final = ("category", "synchronous")


class PrometheusBackend:
    """Keeps the metrics in a registry of `prometheus_client`.

    An acknowledgement tells of many messages at once, and a histogram can't
    take a sum. So the lag is two counters, whose ratio of rates is the mean,
    and a histogram of the longest lag of each acknowledgement, which is what an
    alert should look at.

    Args:
        registry: a `CollectorRegistry`; default the process's own.

    Raises:
        ConfigurationError: `prometheus-client` is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client  # noqa: PLC0415 - optional dependency
        except ImportError as exc:
            raise ConfigurationError(
                "Package prometheus-client is missing, which PrometheusBackend keeps its metrics "
                "in. Install it."
            ) from exc
        registry = prometheus_client.REGISTRY if registry is None else registry

        def counter(name: str, text: str, tags: tuple[str, ...] = _TAGS) -> Any:
            return prometheus_client.Counter(name, text, tags, registry=registry)

        self._counters = {
            SAVED: counter("hybridcloud_outbox_saved", "Messages committed.", _SAVED_TAGS),
            PROCESSED: counter("hybridcloud_outbox_processed", "Messages that are gone."),
        }
        self._lag_seconds = counter(
            "hybridcloud_outbox_processing_lag_seconds", "Seconds from due to acknowledged, added."
        )
        self._lag_count = counter(
            "hybridcloud_outbox_processing_lag_messages", "Handler calls whose lag was added."
        )
        self._lag_most = prometheus_client.Histogram(
            "hybridcloud_outbox_processing_lag_longest_seconds",
            "Longest lag of each acknowledgement.",
            _TAGS,
            buckets=_BUCKETS,
            registry=registry,
        )

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        """Add to a counter; a name that is not exposed is left out."""
        if name in self._counters:
            self._counters[name].labels(**tags).inc(value)

    def timing(self, name: str, seconds: Spread, tags: Mapping[str, str]) -> None:
        """Note the times of several messages; a name that is not exposed is left out."""
        if name != PROCESSING_LAG:
            return
        self._lag_seconds.labels(**tags).inc(seconds.total)
        self._lag_count.labels(**tags).inc(seconds.count)
        self._lag_most.labels(**tags).observe(seconds.most)
