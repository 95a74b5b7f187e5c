"""How fast backfills are, compared with one save per row."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
from django.db import transaction

from hybridcloud.backfill import process_outbox_backfill_batch, set_processing_state
from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo
from tests.benchmarks import world
from tests.benchmarks.measure import Results, alternate
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.models import Walked, WalkedWithPayload

if TYPE_CHECKING:
    from collections.abc import Callable

OUTBOX = "hybridcloud_celloutbox"
BATCH = 10_000
ROWS = 1_000_000
ORGANIZATIONS = 1_000
LEAST = 50
MOST_GROWTH_MB = 16


def measure(*, runs: int, quick: bool) -> Results:
    """Compare ways to write existing rows' messages, then walk a million rows."""
    results = Results("backfill", runs)
    sizes = {"sql": 50_000, "python": 10_000, "saves": 500} if quick else _FULL
    with assume_silo(SiloMode.CELL, cell="us"):
        for model in (Walked, WalkedWithPayload):
            _fill(model, max(sizes.values()))
        candidates: dict[str, Callable[[], float]] = {
            "batches by SQL": partial(_walk, Walked, sizes["sql"]),
            "batches by Python": partial(_walk, WalkedWithPayload, sizes["python"]),
            "one save() of a message per row": partial(_save_messages, sizes["saves"]),
            "one save() per row": partial(_save_rows, sizes["saves"]),
        }
        for name, measured in alternate(candidates, runs=runs, tell=tell).items():
            results.add(name, measured, "rows/s")
        _one_go(results, ROWS // 5 if quick else ROWS)
    _compare(results)
    return results


_FULL = {"sql": 100_000, "python": 20_000, "saves": 2_000}


def _fill(model: Any, count: int) -> None:
    table = model._meta.db_table
    world.empty(table)
    world.execute(
        f"INSERT INTO {table} (organization_id, name)"
        f" SELECT i %% {ORGANIZATIONS}, 'row ' || i FROM generate_series(1, %s) i",
        [count],
    )
    world.settle(table)


def _begin(model: Any) -> None:
    world.empty(OUTBOX)
    set_processing_state(model._meta.db_table, 0, 1)


def _walk(model: Any, rows: int) -> float:
    """Walk this many rows in batches; return rows per second."""
    _begin(model)
    begin, walked = time.perf_counter(), 0
    while walked < rows:
        batch = process_outbox_backfill_batch(
            model, min(BATCH, rows - walked), force_synchronous=True
        )
        if batch is None:
            break
        walked += batch.count
    seconds = time.perf_counter() - begin
    _require_messages(walked)
    return walked / seconds


def _save_messages(rows: int) -> float:
    """Save each row's message in its own transaction, as the reference does."""
    _begin(Walked)
    begin = time.perf_counter()
    for row in Walked.objects.order_by("pk")[:rows].iterator():
        with outbox_context(transaction.atomic(using=world.US), flush=False):
            row.outbox_for_update().save()
    seconds = time.perf_counter() - begin
    _require_messages(rows)
    return rows / seconds


def _save_rows(rows: int) -> float:
    """Save each row itself, as a loop in a shell would."""
    _begin(Walked)
    begin = time.perf_counter()
    for row in Walked.objects.order_by("pk")[:rows].iterator():
        row.save()
    seconds = time.perf_counter() - begin
    _require_messages(rows)
    return rows / seconds


def _one_go(results: Results, rows: int) -> None:
    """Walk the whole table, and watch this process's memory."""
    tell(f"{rows:,} rows in one go")
    _fill(Walked, rows)
    _begin(Walked)
    process, seen = psutil.Process(), []
    begin = time.perf_counter()
    while (
        batch := process_outbox_backfill_batch(Walked, BATCH, force_synchronous=True)
    ) is not None:
        if batch.count:
            seen.append(process.memory_info().rss / 2**20)
    seconds = time.perf_counter() - begin
    _require_messages(rows)
    results.add(f"{rows:,} rows in one go", [rows / seconds], "rows/s", count=rows)
    results.add("memory", seen, "MiB")
    growth = max(seen[1:], default=seen[0]) - seen[0]
    results.compare("memory", "MiB that a whole walk adds", growth, most=MOST_GROWTH_MB)
    results.notes.append(f"{rows:,} rows took {seconds:.1f} s, at batches of {BATCH:,}.")
    world.empty(OUTBOX, Walked._meta.db_table)


def _require_messages(rows: int) -> None:
    (count,) = world.execute(f"SELECT count(*) FROM {OUTBOX}")[0]
    if count != rows:
        raise AssertionError(f"backfill: {count} messages for {rows} rows")


def _compare(results: Results) -> None:
    by_sql, by_python = results.median("batches by SQL"), results.median("batches by Python")
    slow = results.median("one save() of a message per row")
    loop = results.median("one save() per row")
    results.compare(
        "sql", "batches by SQL over one save() of a message per row", by_sql / slow, least=LEAST
    )
    results.compare("loop", "batches by SQL over one save() per row", by_sql / loop, least=LEAST)
    results.compare(
        "python", "batches by Python over one save() of a message per row", by_python / slow
    )
