"""Checks of the Celery app: its beat schedule and its broker.

A missing tick or a lost task would leave committed messages waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import current_app
from django.core.checks import CheckMessage, Warning  # noqa: A004 - Django's

from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.deliver import tasks
from hybridcloud.outbox.drain.limits import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery

# The name of the app that Celery creates if the process has imported none.
_NO_APP: Final = "default"
# Transports that redeliver a task after a timeout, and the default timeout in seconds.
_VISIBILITY: Final = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}
_DRAINS: Final = (
    tasks.enqueue_outbox_jobs,
    tasks.enqueue_outbox_jobs_control,
    tasks.drain_outbox_shards,
    tasks.drain_outbox_shards_control,
)


def check_beat_schedule(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W021: beat ticks for every silo of this process."""
    app = _app()
    if app is None:
        return [
            Warning(
                "No Celery app was imported: nothing drains the outboxes, and no kick is sent.",
                hint="Import your app in the project's __init__.py, as Celery's guide for Django "
                "describes.",
                id="hybridcloud.W021",
            )
        ]
    return [
        Warning(
            f"The beat schedule has no {name}: the work that it starts would wait forever.",
            hint="In the module of the Celery app: from hybridcloud.outbox.tasks import "
            "beat_schedule; app.conf.beat_schedule |= beat_schedule.",
            id="hybridcloud.W021",
        )
        for name, entry in tasks.beat_schedule.items()
        if not any(_covers(other, entry) for other in (app.conf.beat_schedule or {}).values())
    ]


def check_delivery(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W022: lost drain tasks are redelivered, but not too early."""
    app = _app()
    if app is None:
        return []
    return [*_early_acknowledgements(app), *_short_visibility(app)]


def check_broker(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W023: kicks and ticks have a broker to go through."""
    app = _app()
    if (
        app is None
        or app.conf.task_always_eager
        or app.conf.broker_url
        or app.conf.broker_write_url
    ):
        return []
    return [
        Warning(
            "No broker is configured for Celery: ticks and kicks go nowhere.",
            hint="Set broker_url of the Celery app, or drain with manage.py hybridcloud_drainer and "
            'HYBRIDCLOUD["KICK"] = "notify".',
            id="hybridcloud.W023",
        )
    ]


def _app() -> Celery | None:
    proxy: Any = current_app
    # Celery offers only this method to resolve its proxy.
    app: Any = proxy._get_current_object()  # noqa: SLF001
    return None if app.main in (None, _NO_APP) else app


def _covers(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a beat entry ticks for the silo of the wanted one.

    An entry that names no cell ticks for every cell.
    """
    if entry.get("task") != wanted["task"]:
        return False
    cell = (entry.get("kwargs") or {}).get("cell")
    return cell is None or cell == wanted.get("kwargs", {}).get("cell")


def _early_acknowledgements(app: Celery) -> Iterator[CheckMessage]:
    for task in _DRAINS:
        # Look at the task as bound to this app: task_annotations may have changed it.
        if not app.tasks[task.name].acks_late:
            yield Warning(
                f"Task {task.name} is acknowledged before it runs: it is lost with its worker.",
                hint="Remove acks_late from the task's task_annotations.",
                id="hybridcloud.W022",
            )


def _longest_drain() -> float:
    """Return the largest number of seconds that a drain task takes.

    It drains what is due, and then one shard of a lost drainer.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    slowest = max(
        settings().handler_timeout,
        *(scope.policy.handler_timeout or 0.0 for scope in all_scopes()),
    )
    return LIMITS.budget_s + slowest + LIMITS.time_slice_s + slowest


def _short_visibility(app: Celery) -> Iterator[CheckMessage]:
    transport = str(app.conf.broker_url or "").partition(":")[0]
    if transport not in _VISIBILITY:
        return
    given = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    timeout = _VISIBILITY[transport] if given is None else given
    try:
        longest = _longest_drain()
    except ConfigurationError:
        # check_settings reports it.
        return
    if timeout <= longest:
        yield Warning(
            f"The broker redelivers a task after {timeout:g} s, but a drain may take "
            f"{longest:g} s.",
            hint="Raise visibility_timeout in broker_transport_options.",
            id="hybridcloud.W022",
        )
