"""A Celery app that would not drain is found; without it messages would wait, and nobody would know why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, current_app

from hybridcloud.checks import celery as celery_checks
from hybridcloud.checks.celery import check_beat_schedule, check_delivery
from hybridcloud.outbox.declare.scope import Policy
from hybridcloud.outbox.tasks import beat_schedule, drain_outbox_shards, enqueue_outbox_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django.fixtures import SettingsWrapper

FORGOTTEN = "hybridcloud-outbox-cell-eu"
REDIS = "redis://127.0.0.1:6379/0"


@pytest.fixture(name="make_app")
def _make_app() -> Iterator[Callable[..., Celery]]:
    """Return a function that makes the project's app, which is the current one until the test ends."""
    before: Any = current_app
    before = before._get_current_object()

    def make(name: str = "shop", **conf: Any) -> Celery:
        app = Celery(name, set_as_current=True)
        app.conf.update({"broker_url": REDIS, "beat_schedule": beat_schedule, **conf})
        return app

    yield make
    before.set_current()


def found(check: Any) -> list[tuple[str, str]]:
    return [(message.id, message.msg) for message in check()]


def test_an_app_with_our_schedule_has_no_findings(make_app: Callable[..., Celery]) -> None:
    make_app()
    assert check_beat_schedule() == []
    assert check_delivery() == []


def test_w021_no_app_at_all(make_app: Callable[..., Celery]) -> None:
    make_app("default")
    ((identifier, text),) = found(check_beat_schedule)
    assert identifier == "hybridcloud.W021"
    assert "No Celery app was imported" in text
    assert check_delivery() == []


def test_w021_an_app_without_our_schedule(make_app: Callable[..., Celery]) -> None:
    make_app(beat_schedule={"report": {"task": "shop.report", "schedule": 60}})
    missing = [text.partition(":")[0] for _, text in found(check_beat_schedule)]
    assert missing == [f"The beat schedule has no {name}" for name in beat_schedule]
    for silo in ("control", "cell-us", "cell-eu"):
        assert f"The beat schedule has no hybridcloud-outbox-{silo}" in missing


def test_w021_a_schedule_that_forgets_a_cell(make_app: Callable[..., Celery]) -> None:
    kept = {name: each for name, each in beat_schedule.items() if name != FORGOTTEN}
    make_app(beat_schedule=kept)
    ((identifier, text),) = found(check_beat_schedule)
    assert identifier == "hybridcloud.W021"
    assert FORGOTTEN in text


def test_a_tick_for_all_cells_is_one_for_each(make_app: Callable[..., Celery]) -> None:
    kept = {
        f"{name}, under another name": each
        for name, each in beat_schedule.items()
        if each["task"] != enqueue_outbox_jobs.name
    }
    cells = {"task": enqueue_outbox_jobs.name, "schedule": 5}
    make_app(beat_schedule={**kept, "cells": cells})
    assert check_beat_schedule() == []


def test_a_cells_process_needs_its_own_tick_only(
    make_app: Callable[..., Celery], settings: SettingsWrapper
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "SILO_MODE": "CELL", "CELL": "eu"}
    make_app(beat_schedule={})
    missing = [text for _, text in found(check_beat_schedule)]
    assert any(FORGOTTEN in text for text in missing)
    assert not [text for text in missing if "control" in text or "cell-us" in text]


def test_w022_a_task_that_is_acknowledged_early(make_app: Callable[..., Celery]) -> None:
    make_app(task_annotations={drain_outbox_shards.name: {"acks_late": False}})
    ((identifier, text),) = found(check_delivery)
    assert identifier == "hybridcloud.W022"
    assert f"Task {drain_outbox_shards.name} is acknowledged before it runs" in text


@pytest.mark.parametrize(
    ("conf", "timeout"),
    [
        ({"broker_transport_options": {"visibility_timeout": 1235}}, "1235"),
        ({"broker_url": "sqs://", "broker_transport_options": {"visibility_timeout": 60}}, "60"),
    ],
)
def test_w022_a_visibility_timeout_below_what_a_drain_may_take(
    make_app: Callable[..., Celery], settings: SettingsWrapper, conf: Any, timeout: str
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "HANDLER_TIMEOUT": 600}
    make_app(**conf)
    assert found(check_delivery) == [
        (
            "hybridcloud.W022",
            f"The broker redelivers a task after {timeout} s, but a drain may take 1235 s.",
        )
    ]


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_transport_options": {"visibility_timeout": 1236}},
        {"broker_url": "amqp://", "broker_transport_options": {"visibility_timeout": 1}},
    ],
)
def test_a_visibility_timeout_that_is_long_or_means_nothing_is_fine(
    make_app: Callable[..., Celery], settings: SettingsWrapper, conf: Any
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "HANDLER_TIMEOUT": 600}
    make_app(**conf)
    assert check_delivery() == []


def test_w022_counts_the_default_of_redis(
    make_app: Callable[..., Celery], settings: SettingsWrapper
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "HANDLER_TIMEOUT": 4000}
    make_app()
    assert [identifier for identifier, _ in found(check_delivery)] == ["hybridcloud.W022"]


def test_w022_counts_the_scope_whose_handlers_may_take_longest(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_app()
    assert check_delivery() == []
    slow = SimpleNamespace(policy=Policy(handler_timeout=1800))
    monkeypatch.setattr(celery_checks, "all_scopes", lambda: (slow,))
    ((_, text),) = found(check_delivery)
    assert "may take 3635 s" in text
