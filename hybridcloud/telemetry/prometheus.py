"""A metrics backend for Prometheus.

Needs the package `prometheus-client`. The project serves the numbers: with that
package's WSGI app, its `start_http_server`, or a view of its own. With several
processes, set `PROMETHEUS_MULTIPROC_DIR`; these metrics support it.
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

    An acknowledgement reports many messages at once, but a histogram cannot
    record a sum. The lag is therefore two counters, whose ratio of rates is the
    mean, and a histogram of the longest lag in each acknowledgement, which is
    the one to alert on.

    Args:
        registry: a `CollectorRegistry`; default: the process's own.

    Raises:
        ConfigurationError: `prometheus-client` is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client  # noqa: PLC0415 - optional dependency
        except ImportError as exc:
            raise ConfigurationError(
                "Package prometheus-client is missing, but PrometheusBackend needs it. Install it."
            ) from exc
        registry = prometheus_client.REGISTRY if registry is None else registry

        def counter(name: str, text: str, tags: tuple[str, ...] = _TAGS) -> Any:
            return prometheus_client.Counter(name, text, tags, registry=registry)

        self._counters = {
            SAVED: counter("hybridcloud_outbox_saved", "Messages committed.", _SAVED_TAGS),
            PROCESSED: counter("hybridcloud_outbox_processed", "Messages removed."),
        }
        self._lag_seconds = counter(
            "hybridcloud_outbox_processing_lag_seconds", "Total seconds from due to acknowledged."
        )
        self._lag_count = counter(
            "hybridcloud_outbox_processing_lag_messages", "Handler calls in the total lag."
        )
        self._lag_most = prometheus_client.Histogram(
            "hybridcloud_outbox_processing_lag_longest_seconds",
            "Longest lag in each acknowledgement.",
            _TAGS,
            buckets=_BUCKETS,
            registry=registry,
        )

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        """Add to a counter; names that are not exposed are ignored."""
        if name in self._counters:
            self._counters[name].labels(**tags).inc(value)

    def timing(self, name: str, seconds: Spread, tags: Mapping[str, str]) -> None:
        """Record several messages' times; names that are not exposed are ignored."""
        if name != PROCESSING_LAG:
            return
        self._lag_seconds.labels(**tags).inc(seconds.total)
        self._lag_count.labels(**tags).inc(seconds.count)
        self._lag_most.labels(**tags).observe(seconds.most)
