"""What an outbox adds to the cost of a write."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_save
from django.test import override_settings

from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo
from tests.benchmarks import per_message, world
from tests.benchmarks.engines import OURS, THEIRS, receiving
from tests.benchmarks.measure import Results, alternate
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.subjects.models import (
    Document,
    HeardDocument,
    PerMessageOutbox,
    Plain,
    TriggeredDocument,
)
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SHARDS: Final = 50
_TABLES: Final = (*OURS, THEIRS, "bench_plain", "bench_document", "bench_triggereddocument")


def _fields(number: int) -> dict[str, object]:
    return {"organization_id": number % _SHARDS + 1, "name": f"document {number}"}


def _atomic() -> transaction.Atomic:
    return transaction.atomic(using=US)


def _message(document: Plain) -> PerMessageOutbox:
    return PerMessageOutbox(
        shard_scope=Category.DRAINED.get_scope(),
        shard_identifier=document.organization_id,
        category=Category.DRAINED,
        object_identifier=document.pk,
    )


def _no_op(**_: object) -> None:
    """Handle nothing."""


# One change, in each of the ways.


def plain(number: int) -> None:
    Plain(**_fields(number)).save(using=US)


def plain_in_atomic(number: int) -> None:
    with _atomic():
        plain(number)


def ours(number: int) -> None:
    Document(**_fields(number)).save(using=US)


def ours_heard(number: int) -> None:
    HeardDocument(**_fields(number)).save(using=US)


def triggered(number: int) -> None:
    TriggeredDocument(**_fields(number)).save(using=US)


def per_message_row(number: int) -> None:
    with _atomic():
        document = Plain(**_fields(number))
        document.save(using=US)
        _message(document).save(using=US)


# Ten changes in one transaction.


def ten_plain(number: int) -> None:
    with _atomic():
        for each in range(10):
            plain(number + each)


def ten_ours_buffered(number: int) -> None:
    with outbox_context(_atomic()):
        for each in range(10):
            ours(number + each)


def ten_ours_bare(number: int) -> None:
    with _atomic():
        for each in range(10):
            ours(number + each)


def ten_per_message(number: int) -> None:
    with _atomic():
        for each in range(10):
            per_message_row(number + each)


# A change with the flush of its own shard after the commit.


def _saved_with_message(number: int, *, flush: bool) -> None:
    with outbox_context(_atomic(), flush=flush):
        document = Plain(**_fields(number))
        document.save(using=US)
        Category.DRAINED.as_cell_outbox(
            shard_identifier=document.organization_id, object_identifier=document.pk
        ).save(using=US)


def unflushed_ours(number: int) -> None:
    _saved_with_message(number, flush=False)


def flushed_ours(number: int) -> None:
    _saved_with_message(number, flush=True)


def flushed_per_message(number: int) -> None:
    with _atomic():
        document = Plain(**_fields(number))
        document.save(using=US)
        message = _message(document)
        message.save(using=US)
        shard = {name: getattr(message, name) for name in PerMessageOutbox.sharding}
        transaction.on_commit(partial(per_message.drain_shard, shard, flush_all=False), using=US)


def _cost(change: Callable[[int], None], *, times: int, rows: int) -> float:
    """Return the microseconds per row."""
    world.empty(*_TABLES)
    for number in range(5):
        change(number)
    if "flushed" in change.__name__:
        # The flushed ways leave nothing behind; rows that the other left must not slow them down.
        world.empty(*OURS, THEIRS)
    begin = time.perf_counter()
    for number in range(times):
        change(number * rows)
    return (time.perf_counter() - begin) / (times * rows) * 1e6


def _series(
    results: Results,
    group: str,
    changes: Sequence[Callable[[int], None]],
    *,
    runs: int,
    times: int,
    rows: int = 1,
) -> None:
    candidates = {
        change.__name__.replace("_", " "): partial(_cost, change, times=times, rows=rows)
        for change in changes
    }
    for name, measured in alternate(
        candidates, runs=runs, tell=lambda what: tell(f"{group}: {what}")
    ).items():
        results.add(f"{group}/{name}", measured, "µs/row", count=times * rows)


def _bulk_plain(count: int) -> None:
    Plain.objects.using(US).bulk_create([Plain(**_fields(each)) for each in range(count)])


def _bulk_ours(count: int) -> None:
    Document.objects.using(US).bulk_create([Document(**_fields(each)) for each in range(count)])


def _bulk_per_message(count: int) -> None:
    with _atomic():
        made = Plain.objects.using(US).bulk_create([Plain(**_fields(n)) for n in range(count)])
        PerMessageOutbox.objects.using(US).bulk_create([_message(each) for each in made])


def _bulk_raw(count: int) -> None:
    with psycopg.connect(world.dsn(US)) as connection:
        connection.execute(
            "INSERT INTO bench_plain (organization_id, name, body) "
            "SELECT o, n, '' FROM unnest(%s::bigint[], %s::text[]) t(o, n)",
            ([n % _SHARDS + 1 for n in range(count)], [f"document {n}" for n in range(count)]),
        )


def _bulk_cost(create: Callable[[int], None], count: int) -> float:
    world.empty(*_TABLES)
    begin = time.perf_counter()
    create(count)
    return (time.perf_counter() - begin) / count * 1e6


def measure(*, runs: int, quick: bool) -> Results:
    """Write one row, ten rows and ten thousand at once, in all the ways."""
    results = Results("write", runs)
    times, count = (150, 2000) if quick else (300, 10_000)
    post_save.connect(_no_op, sender=HeardDocument)
    with assume_silo(SiloMode.CELL, cell="us"):
        _series(
            results,
            "one row",
            (plain, plain_in_atomic, ours, ours_heard, triggered, per_message_row),
            # The differences of a tenth are less than a disk varies from run to run.
            runs=max(runs, 15),
            times=times,
        )
        ways = (ten_plain, ten_ours_buffered, ten_ours_bare, ten_per_message)
        _series(results, "ten rows", ways, runs=runs, times=times // 5, rows=10)
        sync = {**settings.HYBRIDCLOUD, "FLUSH": "sync"}
        per_message.process_message.connect(_no_op, sender=Category.DRAINED)
        with override_settings(HYBRIDCLOUD=sync), receiving(Category.DRAINED, _no_op):
            flushes = (
                plain_in_atomic,
                unflushed_ours,
                flushed_ours,
                per_message_row,
                flushed_per_message,
            )
            _series(results, "flush", flushes, runs=runs, times=times // 2)
        bulk = {
            "plain": _bulk_plain,
            "ours": _bulk_ours,
            "per message": _bulk_per_message,
            "raw psycopg, no outbox": _bulk_raw,
        }
        measured = alternate(
            {name: partial(_bulk_cost, create, count) for name, create in bulk.items()},
            runs=max(runs, 15),
            tell=lambda what: tell(f"bulk: {what}"),
        )
    for name, each in measured.items():
        results.add(f"bulk/{name}", each, "µs/row", count=count)
    world.empty(*_TABLES)
    _compare(results)
    return results


def _compare(results: Results) -> None:
    def over(key: str, base: str, what: str, *, most: float | None = None) -> None:
        # By turns: these differences are less than what a disk varies from minute to minute.
        results.compare(key, what, results.paired(key, base), most=most)

    over(
        "one row/ours",
        "one row/plain in atomic",
        "a save with its outbox over save() in atomic()",
        most=1.4,
    )
    over(
        "one row/ours heard",
        "one row/plain in atomic",
        "the same, where a receiver of post_save hears of it",
    )
    over(
        "one row/triggered",
        "one row/plain",
        "trigger mode: a save over a plain autocommit save",
        most=1.15,
    )
    over("one row/per message row", "one row/plain in atomic", "the same, per message")
    over(
        "ten rows/ten ours buffered",
        "ten rows/ten plain",
        "10 saves in outbox_context(atomic()) over none",
        most=1.6,
    )
    over(
        "ten rows/ten ours bare",
        "ten rows/ten plain",
        "10 saves in a bare atomic() over none",
        most=1.9,
    )
    over("ten rows/ten per message", "ten rows/ten plain", "the same, per message")
    over("bulk/ours", "bulk/plain", "bulk_create over plain bulk_create", most=1.6)
    over("bulk/per message", "bulk/plain", "the same, per message")
    added = {
        "ours": results.median("flush/flushed ours") - results.median("flush/unflushed ours"),
        "theirs": results.median("flush/flushed per message")
        - results.median("flush/per message row"),
    }
    results.compare(
        "flush",
        "added time of a per-message flush over that of ours",
        added["theirs"] / added["ours"],
        least=3,
    )
    results.notes.append(
        "flush: what the flush adds to the same save without it, with a no-op receiver on both sides."
    )
