"""Whether throughput lasts under steady writing.

A writer commits at a steady rate while this process drains. The figure compared
is the capacity: messages per second of the time that the drainer was busy. It runs
once, in sixths, and then again with a reader that holds an old snapshot open.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo
from tests.benchmarks import world
from tests.benchmarks.engines import OURS, OUTBOX, handler, receiving
from tests.benchmarks.measure import Results
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.workers import Child
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE: Final = 3000
_SIXTHS: Final = 6
_PAUSE: Final = 0.4
"""Seconds in which messages gather, so that a pass has a thousand or more."""


@contextmanager
def _old_snapshot() -> Iterator[None]:
    """Keep a snapshot open, as a report or a dump does.

    Rows that die after it cannot be vacuumed.
    """
    with psycopg.connect(world.dsn(US)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM bench_plain")
        yield


def _run(seconds: float) -> tuple[list[float], list[float]]:
    """Write and drain; return capacity and drained messages/s, by sixths."""
    world.empty(*OURS)
    writer = Child("steady_writer", rate=RATE, seconds=seconds)
    busy, moved = [0.0] * _SIXTHS, [0] * _SIXTHS
    try:
        writer.hear()
        writer.say("go")
        drainer = Drainer(CellOutbox, US)
        begin = time.perf_counter()
        with (
            assume_silo(SiloMode.CELL, cell="us"),
            receiving(Category.DRAINED, handler(0, [0])),
        ):
            while (at := time.perf_counter() - begin) < seconds:
                sixth = min(_SIXTHS - 1, int(at / seconds * _SIXTHS))
                # One pass over all shards: otherwise a sweep would go on as long as messages come, and
                # the capacity could never exceed the writer's rate.
                count = drainer.sweep(rounds=1)
                busy[sixth] += time.perf_counter() - begin - at
                moved[sixth] += count
                time.sleep(_PAUSE)
    finally:
        writer.end()
    capacity = [m / b if b else 0.0 for m, b in zip(moved, busy, strict=True)]
    return capacity, [m / (seconds / _SIXTHS) for m in moved]


def measure(*, runs: int, quick: bool) -> Results:
    """Drain under steady writing, free and with a held snapshot."""
    del runs
    results = Results("bloat", 1)
    sustained, held = (24.0, 24.0) if quick else (180.0, 120.0)
    tell(f"{RATE} messages a second for {sustained:.0f} s")
    free, rate = _run(sustained)
    _keep(results, "free", free, rate)
    tell(f"the same with an old snapshot for {held:.0f} s")
    with _old_snapshot():
        capacity, rate = _run(held)
    _keep(results, "held snapshot", capacity, rate)
    world.empty(*OURS)
    thirds = [sum(free[at : at + 2]) / 2 for at in (0, 4)]
    results.compare(
        "sustained",
        f"capacity in the last third of {sustained:.0f} s over the first",
        thirds[1] / thirds[0],
        # The target is for minutes; the sixths of a shorter run are too short for it.
        least=None if quick else 0.9,
    )
    results.compare(
        "held",
        f"capacity with a held snapshot, last sixth of {held:.0f} s, over free",
        capacity[-1] / (sum(free) / len(free)),
        least=None if quick else 0.6,
    )
    results.notes += [
        f"Capacity: messages per second of busy drain time; the writer commits {RATE} per second and shares the cores.",
        "Each sixth was measured once; min and max are over the sixths.",
    ]
    return results


def _keep(results: Results, name: str, capacity: list[float], rate: list[float]) -> None:
    for number, value in enumerate(capacity, start=1):
        results.add(f"{name}/sixth {number}", [value], "messages/s busy")
    results.add(f"{name}/drained", rate, "messages/s")
    size = world.execute("SELECT pg_relation_size(%s), pg_indexes_size(%s)", [OUTBOX, OUTBOX])[0]
    results.add(f"{name}/table", [size[0] / 2**20], "MB at the end")
    results.add(f"{name}/indexes", [size[1] / 2**20], "MB at the end")
