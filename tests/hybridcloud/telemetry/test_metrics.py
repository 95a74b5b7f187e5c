"""What the engine did is counted under the names that operators know; without it their graphs would be empty."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import prometheus_client
import pytest
from django.db import connections, transaction

from fixtures.acme import factories
from fixtures.acme.models import Organization
from hybridcloud import hooks
from hybridcloud.hooks import Spread
from hybridcloud.outbox import outbox_context
from hybridcloud.telemetry import use_backend
from hybridcloud.telemetry.metrics import PROCESSING_LAG, MetricsListener
from hybridcloud.telemetry.prometheus import PrometheusBackend
from hybridcloud.testutils import outbox_runner
from silos import SiloMode, assume_silo
from tests.hybridcloud.outbox.engine import Kind, drain_us, listening, message, put, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Recorded:
    """A backend that remembers."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, int, dict[str, str]]] = []
        self.timings: list[tuple[str, Spread, dict[str, str]]] = []

    def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
        self.counts.append((name, value, dict(tags)))

    def timing(self, name: str, seconds: Spread, tags: Mapping[str, str]) -> None:
        self.timings.append((name, seconds, dict(tags)))

    def named(self, name: str) -> list[tuple[int, dict[str, str]]]:
        return [(value, tags) for each, value, tags in self.counts if each == name]


@contextmanager
def backend[B: Any](made: B) -> Iterator[B]:
    use_backend(made)
    try:
        yield made
    finally:
        use_backend(None)


def test_the_listener_is_installed_with_the_app() -> None:
    assert any(isinstance(each.__self__, MetricsListener) for each in hooks.active.saved)  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
def test_saved_messages_are_counted_after_the_commit_and_only_then() -> None:
    with backend(Recorded()) as seen:
        with outbox_context(transaction.atomic(using="cell_us"), flush=False):
            message(Kind.PLAIN, 1, 1).save(using="cell_us")
            message(Kind.PLAIN, 1, 2).save(using="cell_us")
            message(Kind.ORDERED, 1, 1).save(using="cell_us")
            assert seen.counts == []
        assert sorted(seen.named("outbox.saved"), key=str) == [
            (1, {"category": "ORDERED"}),
            (2, {"category": "PLAIN"}),
        ]
        seen.counts.clear()
        with outbox_context(transaction.atomic(using="cell_us"), flush=False):
            message().save(using="cell_us")
            transaction.set_rollback(True, using="cell_us")
        assert seen.counts == []


@pytest.mark.django_db(transaction=True)
def test_processed_messages_are_counted_with_their_lag() -> None:
    for payload in (1, 2, 3):
        put(Kind.PLAIN, 1, 7, {"n": payload})
    put(Kind.OTHER, 1, 8)
    with backend(Recorded()) as seen, listening(Kind.PLAIN, Kind.OTHER):
        drain_us()
    assert sorted(seen.named("outbox.processed"), key=str) == [
        (1, {"category": "OTHER", "synchronous": "0"}),
        (3, {"category": "PLAIN", "synchronous": "0"}),
    ]
    lag = {tags["category"]: spread for name, spread, tags in seen.timings}
    assert {name for name, _, _ in seen.timings} == {PROCESSING_LAG}
    assert lag["PLAIN"].count == 1
    assert 0 < lag["PLAIN"].most <= lag["PLAIN"].total < 60


@pytest.mark.django_db(transaction=True)
def test_the_lag_of_an_object_is_that_of_its_oldest_message() -> None:
    first = put(Kind.PLAIN, 1, 7)
    put(Kind.PLAIN, 1, 7)
    put(Kind.PLAIN, 1, 8)
    with connections["cell_us"].cursor() as cursor:
        cursor.execute(
            "UPDATE hybridcloud_celloutbox SET date_added = date_added - interval '1 h', "
            "scheduled_for = scheduled_for - interval '1 h' WHERE id = %s",
            [first],
        )
    with backend(Recorded()) as seen, listening(Kind.PLAIN):
        drain_us()
    ((_, lag, _),) = seen.timings
    assert lag.count == 2
    assert 3600 <= lag.most <= lag.total < 3660


@pytest.mark.django_db(transaction=True)
def test_a_flush_by_the_writer_is_tagged_as_synchronous() -> None:
    with backend(Recorded()) as seen, listening(Kind.PLAIN), assume_silo(SiloMode.CELL, cell="us"):
        write(message(), flush=True)
    assert seen.named("outbox.processed") == [(1, {"category": "PLAIN", "synchronous": "1"})]


@pytest.mark.django_db(transaction=True)
def test_retired_messages_that_are_dropped_count_as_processed() -> None:
    # As a release before wrote it: the running code refuses to.
    put(Kind.PLAIN, 1, 7)
    with assume_silo(SiloMode.CELL, cell="us"):
        from hybridcloud.outbox import CellOutbox

        CellOutbox._base_manager.using("cell_us").update(category=Kind.GONE.value)
    with backend(Recorded()) as seen:
        drain_us()
    assert seen.named("outbox.processed") == [(1, {"category": "GONE", "synchronous": "0"})]
    assert seen.timings == []


@pytest.mark.django_db
def test_acmes_changes_are_counted_from_both_sides() -> None:
    with backend(Recorded()) as seen, outbox_runner():
        organization = factories.create_organization(cell="us")
        with assume_silo(SiloMode.CELL, cell="us"):
            Organization.objects.filter(id=organization.id).update(name="New")
    processed = seen.named("outbox.processed")
    assert [tags["category"] for _, tags in processed] == ["ORGANIZATION_UPDATE"]
    assert processed[0][0] == 2


def test_a_backend_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorded):
        def count(self, name: str, value: int, tags: Mapping[str, str]) -> None:
            raise ConnectionError("no StatsD")

    with backend(Broken()):
        hooks.tell(hooks.active.saved, hooks.Saved("hybridcloud.CellOutbox", {9000: 1}))
    assert "A listener of Saved failed" in caplog.text


def test_without_a_backend_nothing_is_counted() -> None:
    with backend(Recorded()) as seen:
        pass
    hooks.tell(hooks.active.saved, hooks.Saved("hybridcloud.CellOutbox", {9000: 1}))
    assert seen.counts == []


def test_prometheus_exposes_what_was_counted() -> None:
    registry = prometheus_client.CollectorRegistry()
    with backend(PrometheusBackend(registry)):
        hooks.tell(hooks.active.saved, hooks.Saved("hybridcloud.CellOutbox", {9000: 3}))
        handled = hooks.Handled(
            outbox="hybridcloud.CellOutbox",
            synchronous=True,
            calls={9000: 2},
            messages={9000: 3},
            lag={9000: Spread(2, 5.0, 4.0)},
        )
        hooks.tell(hooks.active.handled, handled)
    tags = {"category": "PLAIN", "synchronous": "1"}
    values = {
        name: registry.get_sample_value(f"hybridcloud_outbox_{name}", tags)
        for name in (
            "processed_total",
            "processing_lag_seconds_total",
            "processing_lag_messages_total",
            "processing_lag_longest_seconds_sum",
        )
    }
    assert values == {
        "processed_total": 3,
        "processing_lag_seconds_total": 5,
        "processing_lag_messages_total": 2,
        "processing_lag_longest_seconds_sum": 4,
    }
    saved = registry.get_sample_value("hybridcloud_outbox_saved_total", {"category": "PLAIN"})
    assert saved == 3
    assert registry.get_sample_value(
        "hybridcloud_outbox_processing_lag_longest_seconds_bucket", {**tags, "le": "5.0"}
    )


def test_prometheus_leaves_other_names_out() -> None:
    made = PrometheusBackend(prometheus_client.CollectorRegistry())
    made.count("outbox.something_new", 1, {"category": "PLAIN"})
    made.timing("outbox.something_new", Spread(1, 1, 1), {"category": "PLAIN"})
