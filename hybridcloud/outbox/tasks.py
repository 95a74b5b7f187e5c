"""The public path of the Celery tasks and of their schedule.

::

    from hybridcloud.outbox.tasks import beat_schedule

    app.conf.beat_schedule = beat_schedule
"""

from __future__ import annotations

from typing import Any

from hybridcloud.outbox.deliver import tasks
from hybridcloud.outbox.deliver.tasks import (
    drain_outbox_shards,
    drain_outbox_shards_control,
    enqueue_outbox_jobs,
    enqueue_outbox_jobs_control,
    queue_name,
    queue_names,
    schedule_batch,
)

__all__ = [
    "drain_outbox_shards",
    "drain_outbox_shards_control",
    "enqueue_outbox_jobs",
    "enqueue_outbox_jobs_control",
    "queue_name",
    "queue_names",
    "schedule_batch",
]


def __getattr__(name: str) -> Any:
    # Lazily: a Celery app module imports the schedule before the settings can be read.
    if name == "beat_schedule":
        return tasks.beat_schedule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
