"""The Celery tasks that carry deletions over foreign keys."""

from __future__ import annotations

from typing import Final

from celery import shared_task

from hybridcloud.outbox.deliver.tasks import cells_here, queue_name
from silos import SiloMode, assume_silo

MOST_BATCHES: Final = 20
"""Batches that one task does before it sends itself again, so that no task runs for long."""


@shared_task(
    name="hybridcloud.tombstones.schedule_hybrid_cloud_foreign_key_jobs",
    acks_late=True,
    ignore_result=True,
)
def schedule_hybrid_cloud_foreign_key_jobs(cell: str | None = None) -> None:
    """Fan out a task for each foreign key of a cell's models.

    A monolith visits each cell.
    """
    for name in [cell] if cell else cells_here():
        with assume_silo(SiloMode.CELL, cell=name):
            _schedule(SiloMode.CELL, name)


@shared_task(
    name="hybridcloud.tombstones.schedule_hybrid_cloud_foreign_key_jobs_control",
    acks_late=True,
    ignore_result=True,
)
def schedule_hybrid_cloud_foreign_key_jobs_control() -> None:
    """Fan out a task for each foreign key of control's models."""
    with assume_silo(SiloMode.CONTROL):
        _schedule(SiloMode.CONTROL, None)


def _schedule(mode: SiloMode, cell: str | None) -> None:
    from hybridcloud.tombstones.cascade import (  # noqa: PLC0415 - Django app registry
        foreign_keys,
        prune_tombstones,
    )

    for key in foreign_keys(mode):
        _send(mode, cell, key.model._meta.label, key.field.name)
    prune_tombstones(mode)


def _send(mode: SiloMode, cell: str | None, label: str, field: str) -> None:
    process_foreign_key.apply_async(
        kwargs={"mode": mode.name, "cell": cell, "label": label, "field": field},
        queue=queue_name(mode, cell),
    )


@shared_task(name="hybridcloud.tombstones.process_foreign_key", acks_late=True, ignore_result=True)
def process_foreign_key(mode: str, cell: str | None, label: str, field: str) -> None:
    """Carry deletions over one key, some batches at a time."""
    from hybridcloud.tombstones.cascade import (  # noqa: PLC0415 - Django app registry
        find_foreign_key,
        process_hybrid_cloud_foreign_key_cascade_batch,
    )

    with assume_silo(SiloMode[mode], cell=cell):
        key = find_foreign_key(label, field)
        for _ in range(MOST_BATCHES):
            if not process_hybrid_cloud_foreign_key_cascade_batch(key):
                return
        _send(SiloMode[mode], cell, label, field)
