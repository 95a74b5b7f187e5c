"""The Celery tasks and their schedule.

::

    from hybridcloud.outbox.tasks import beat_schedule

    app.conf.beat_schedule = beat_schedule
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import shared_task
from celery.exceptions import OperationalError

from hybridcloud.conf import settings
from hybridcloud.outbox.deliver import broker
from hybridcloud.outbox.deliver.notify import send_notify
from hybridcloud.redis import shared_redis
from silos import SiloMode, assume_silo
from silos.cells import all_cells
from silos.mode import get_current_silo, get_process_silo
from silos.router import alias_for_model, silo_aliases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery.app.task import Task

    from hybridcloud.outbox.store.tables import OutboxTable

TICK: Final = 2.0
"""Seconds between scheduler ticks: with a lease of 15 s a lost shard is taken over within 20 s."""
CASCADE_TICK: Final = 15.0
"""Seconds between two looks at the foreign keys between silos."""
# By name: the layer above is not imported.
_CASCADE: Final = "hybridcloud.tombstones.schedule_hybrid_cloud_foreign_key_jobs"
type Counts = dict[str, dict[str, int]]
"""How many messages moved and failed, by outbox table."""
_KICK_TTL: Final = 5
_KICK_SHARDS: Final = 32
_EXPIRES: Final = 10


def queue_name(mode: SiloMode, cell: str | None) -> str:
    """Return the Celery queue of a silo.

    It is ``hybridcloud.control`` or ``hybridcloud.cell.<name>``.
    """
    return "hybridcloud.control" if mode is SiloMode.CONTROL else f"hybridcloud.cell.{cell}"


def queue_names() -> list[str]:
    """Return the queues of this process's workers: its silo's, or all."""
    here = get_process_silo()
    cells = [queue_name(SiloMode.CELL, cell) for cell in cells_here()]
    control = [queue_name(SiloMode.CONTROL, None)]
    return {SiloMode.CONTROL: control, SiloMode.CELL: cells}.get(here.mode, control + cells)


def cells_here() -> list[str]:
    """Return this process's cells: its own, or all of a monolith's."""
    here = get_process_silo()
    if here.mode is SiloMode.CELL and here.cell is not None:
        return [here.cell]
    return [] if here.mode is SiloMode.CONTROL else [cell.name for cell in all_cells()]


def _make_beat_schedule() -> dict[str, dict[str, Any]]:
    """Return a tick for each silo of this process, sent to the silo's queue."""
    schedule: dict[str, dict[str, Any]] = {}

    def add(what: str, task: str, every: float, expires: float, cell: str | None) -> None:
        mode, name = (SiloMode.CELL, f"cell-{cell}") if cell else (SiloMode.CONTROL, "control")
        schedule[f"hybridcloud-{what}-{name}"] = {
            "task": task,
            "schedule": every,
            "options": {"queue": queue_name(mode, cell), "expires": expires},
            **({"kwargs": {"cell": cell}} if cell else {}),
        }

    if get_process_silo().mode is not SiloMode.CELL:
        add("outbox", enqueue_outbox_jobs_control.name, TICK, _EXPIRES, None)
        add("cascade", f"{_CASCADE}_control", CASCADE_TICK, CASCADE_TICK, None)
    for cell in cells_here():
        add("outbox", enqueue_outbox_jobs.name, TICK, _EXPIRES, cell)
        add("cascade", _CASCADE, CASCADE_TICK, CASCADE_TICK, cell)
    return schedule


def __getattr__(name: str) -> Any:
    # Lazily: a Celery app module imports it before the settings can be read.
    if name == "beat_schedule":
        return _make_beat_schedule()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def schedule_batch(
    silo_mode: SiloMode,
    drain_task: Task[..., Any],
    *,
    concurrency: int | None = None,
    process_outbox_backfills: bool = True,
) -> int:
    """Find the current silo's due shards, and fan out drain tasks for them.

    ``concurrency`` is how many tasks share them, by default as the setting says. Backfills go on
    after the fan-out. Returns how many shards were found due.
    """
    from hybridcloud.outbox.deliver.tick import MOST_FOUND, has_stale, tick  # noqa: PLC0415 - Django app registry
    from hybridcloud.outbox.drain.due import find_due_shards, split  # noqa: PLC0415 - Django app registry
    from hybridcloud.outbox.store.session import Engine  # noqa: PLC0415 - Django app registry
    from hybridcloud.outbox.store.tables import outbox_models  # noqa: PLC0415 - Django app registry
    from hybridcloud.registry import backfill_outboxes  # noqa: PLC0415 - Django app registry

    found = 0
    for outbox in outbox_models(silo_mode):
        alias = alias_for_model(outbox)
        engine = Engine(outbox, alias)
        tick(engine)
        due = find_due_shards(outbox, alias=alias, limit=MOST_FOUND)
        found += len(due)
        if not due and not has_stale(engine):
            continue
        mode, cell = _silo_of(alias, silo_mode)
        for after, most in split(due, concurrency or settings().concurrency):
            place = {"cell": cell, "after": list(after), "most": most}
            drain_task.apply_async(
                kwargs={"outbox_name": outbox._meta.label, **place},
                queue=queue_name(mode, cell),
                expires=_EXPIRES,
            )
    if process_outbox_backfills:
        backfill_outboxes(silo_mode.name, found)
    return found


def _silo_of(alias: str, silo_mode: SiloMode) -> tuple[SiloMode, str | None]:
    if silo_mode is SiloMode.CONTROL:
        return silo_mode, None
    _, cell = silo_aliases().get(alias, (silo_mode, None))
    return silo_mode, cell or get_current_silo().cell


@shared_task(name="hybridcloud.outbox.enqueue_outbox_jobs", acks_late=True, ignore_result=True)
def enqueue_outbox_jobs(
    cell: str | None = None,
    concurrency: int | None = None,
    process_outbox_backfills: bool = True,  # noqa: FBT001, FBT002 - a task's arguments go by name
) -> None:
    """Fan out drain tasks for a cell's due shards; a monolith's for each."""
    for name in [cell] if cell else cells_here():
        with assume_silo(SiloMode.CELL, cell=name):
            schedule_batch(
                SiloMode.CELL,
                drain_outbox_shards,
                concurrency=concurrency,
                process_outbox_backfills=process_outbox_backfills,
            )


@shared_task(
    name="hybridcloud.outbox.enqueue_outbox_jobs_control", acks_late=True, ignore_result=True
)
def enqueue_outbox_jobs_control(
    concurrency: int | None = None,
    process_outbox_backfills: bool = True,  # noqa: FBT001, FBT002 - a task's arguments go by name
) -> None:
    """Fan out drain tasks for control's due shards."""
    with assume_silo(SiloMode.CONTROL):
        schedule_batch(
            SiloMode.CONTROL,
            drain_outbox_shards_control,
            concurrency=concurrency,
            process_outbox_backfills=process_outbox_backfills,
        )


@shared_task(name="hybridcloud.outbox.drain_outbox_shards", acks_late=True, ignore_result=True)
def drain_outbox_shards(
    outbox_name: str | None = None,
    cell: str | None = None,
    after: Sequence[int] = (-1, 0),
    most: int | None = None,
) -> dict[str, Counts]:
    """Drain a cell's due shards until none is due or the budget is spent.

    Returns how many messages moved and failed, by cell and outbox table.
    """
    counts = {}
    for name in [cell] if cell else cells_here():
        with assume_silo(SiloMode.CELL, cell=name):
            counts[name] = _drain(SiloMode.CELL, outbox_name, name, after, most)
    return counts


@shared_task(
    name="hybridcloud.outbox.drain_outbox_shards_control", acks_late=True, ignore_result=True
)
def drain_outbox_shards_control(
    outbox_name: str | None = None,
    cell: str | None = None,  # noqa: ARG001 - the twins take the same arguments
    after: Sequence[int] = (-1, 0),
    most: int | None = None,
) -> Counts:
    """Drain control's due shards until none is due or the budget is spent.

    Returns how many messages moved and failed, by outbox table.
    """
    with assume_silo(SiloMode.CONTROL):
        return _drain(SiloMode.CONTROL, outbox_name, None, after, most)


def _drain(
    mode: SiloMode,
    outbox_name: str | None,
    cell: str | None,
    after: Sequence[int],
    most: int | None,
) -> Counts:
    from hybridcloud.outbox.drain.limits import LIMITS  # noqa: PLC0415 - Django app registry
    from hybridcloud.outbox.drain.loop import Drainer  # noqa: PLC0415 - Django app registry
    from hybridcloud.outbox.store.tables import outbox_models  # noqa: PLC0415 - Django app registry

    if (redis := shared_redis()) is not None:
        # Before the drain looks for messages, so that no wake-up is lost in between.
        redis.remove(_kick_key(queue_name(mode, cell)))
    counts: Counts = {}
    for outbox in outbox_models(mode):
        if outbox_name in (None, outbox._meta.label):
            drainer = Drainer(outbox, alias_for_model(outbox))
            moved = drainer.sweep(
                after=(after[0], after[1]),
                most=min(most or LIMITS.shards_per_pass, LIMITS.shards_per_pass),
            )
            counts[drainer.engine.tables.label] = {"moved": moved, "failed": drainer.failed}
    return counts


def _kick_key(queue: str) -> str:
    return f"hybridcloud.kick.{queue}"


def send_kick(outbox: type[OutboxTable], alias: str) -> None:
    """Wake a drainer, by NOTIFY or a task, unless one is on its way already."""
    if settings().kick == "notify":
        send_notify(outbox, alias)
        return
    mode, cell = _silo_of(alias, outbox.silo_mode)
    queue = queue_name(mode, cell)
    task = drain_outbox_shards_control if mode is SiloMode.CONTROL else drain_outbox_shards
    if not task.app.conf.task_always_eager and not broker.may_send(task.app):
        return
    redis = shared_redis()
    sent_by_another = (
        redis is not None
        and redis.put(_kick_key(queue), "1", seconds=_KICK_TTL, only_new=True) is False
    )
    if sent_by_another:
        return
    try:
        task.apply_async(
            # Few shards at once: the others of a burst are for the kicks that follow, and other
            # threads.
            kwargs={"outbox_name": outbox._meta.label, "cell": cell, "most": _KICK_SHARDS},
            queue=queue,
            retry=False,
        )
    except OperationalError as exc:
        broker.mute(exc)
