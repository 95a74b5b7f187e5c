"""Whether finding due shards costs the same however many messages wait."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from hybridcloud.outbox import CellOutbox
from silos import SiloMode, assume_silo
from tests.benchmarks import per_message, world
from tests.benchmarks.engines import OURS, OUTBOX, THEIRS
from tests.benchmarks.measure import Measured, Results, alternate
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.categories import Category

if TYPE_CHECKING:
    from collections.abc import Callable

_PER_SHARD: Final = 10
_COLUMNS: Final = "shard_scope, shard_identifier, category, object_identifier"


def _fill(table: str, count: int, shards: int) -> None:
    """Fill a table by SQL, as writing millions of messages would take long."""
    more = ", scheduled_for" if table == THEIRS else ""
    value = ", '2016-08-01'" if table == THEIRS else ""
    world.execute(
        f"INSERT INTO {table} ({_COLUMNS}{more}) "
        f"SELECT %s, i %% %s + 1, %s, i{value} FROM generate_series(1, %s) i",
        [Category.DRAINED.get_scope().value, shards, Category.DRAINED.value, count],
    )
    world.settle(table)


def _milliseconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1000


def _find(limit: int) -> None:
    found = CellOutbox.find_scheduled_shards(limit=limit)
    if len(found) != limit:
        raise AssertionError(f"{len(found)} due shards instead of {limit}")


def measure(*, runs: int, quick: bool) -> Results:
    """Find due shards at several depths."""
    results = Results("due", runs)
    depths = (10_000, 100_000, 500_000) if quick else (10_000, 1_000_000, 5_000_000)
    with assume_silo(SiloMode.CELL, cell="us"):
        for depth in depths:
            _measure_depth(results, depth, runs=runs, with_theirs=depth <= 1_000_000)
        world.empty(*OURS)
        tell("1,000,000 messages in 1,000 shards")
        _fill(OUTBOX, 1_000_000, 1000)
        _find(1000)
        times = [_milliseconds(partial(_find, 1000)) for _ in range(runs)]
        results.add("1000 shards, deep/ours, all 1000", times, "ms", count=1_000_000)
    world.empty(*OURS, THEIRS)
    last = depths[-1]
    for limit in (100, 1000):
        value = results.median(f"{last}/ours, {limit}") / results.median(
            f"{depths[0]}/ours, {limit}"
        )
        results.compare(
            f"due {limit}",
            f"{limit} due shards of {last:,} messages over of {depths[0]:,}",
            value,
            most=2,
        )
    middle = depths[-2]
    results.compare(
        "group by",
        f"GROUP BY over ours for 100 shards at {middle:,} messages",
        results.median(f"{middle}/per message, all") / results.median(f"{middle}/ours, 100"),
    )
    results.compare(
        "tick",
        "ms to find all of 1,000 shards with 1,000,000 messages",
        results.median("1000 shards, deep/ours, all 1000"),
        most=20,
    )
    return results


def _measure_depth(results: Results, depth: int, *, runs: int, with_theirs: bool) -> None:
    tell(f"filling with {depth:,} messages")
    world.empty(*OURS, THEIRS)
    _fill(OUTBOX, depth, depth // _PER_SHARD)
    candidates: dict[str, Callable[[], float]] = {
        f"ours, {limit}": partial(_milliseconds, partial(_find, limit)) for limit in (100, 1000)
    }
    if with_theirs:
        _fill(THEIRS, depth, depth // _PER_SHARD)
        candidates["per message, all"] = partial(_milliseconds, per_message.find_scheduled_shards)
    for warm in candidates.values():
        warm()
    # More runs where no slow candidate alternates: single milliseconds are easily disturbed.
    for name, measured in alternate(candidates, runs=runs * (1 if with_theirs else 3)).items():
        results.add(f"{depth}/{name}", Measured(measured.values), "ms", count=depth)
