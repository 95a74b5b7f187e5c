"""The reference's per-message algorithm, recreated with the Django ORM.

It is written only from the public description: due shards by GROUP BY, the head of
a shard locked, the whole shard's schedule moved, then one transaction for each
group: lock the head, find the newest and the oldest of its group, send the signal,
delete the older ones in slices of 50 and the newest last. It has no metrics, no
spans and no option lookups, so the real one is slower.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, transaction
from django.db.models import Max, Min
from django.dispatch import Signal
from django.utils import timezone

from hybridcloud.outbox.declare.category import find_category
from tests.benchmarks.subjects.models import PerMessageOutbox
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

process_message = Signal()
_FIRST = timedelta(seconds=1)
_LONGEST = timedelta(hours=1)
_SLICE = 50


def _rows() -> Any:
    return PerMessageOutbox.objects.using(US)


def _key_of(message: PerMessageOutbox, columns: tuple[str, ...]) -> dict[str, Any]:
    return {column: getattr(message, column) for column in columns}


def find_scheduled_shards() -> list[dict[str, Any]]:
    """Return the keys of shards with a due message, the longest due first."""
    grouped = (
        _rows()
        .filter(scheduled_for__lte=timezone.now(), id__gte=0)
        .values(*PerMessageOutbox.sharding)
    )
    due = grouped.annotate(due=Min("scheduled_for"), newest=Max("id")).order_by("due", "newest")
    return [{column: row[column] for column in PerMessageOutbox.sharding} for row in due]


def prepare_next_from_shard(shard: Mapping[str, Any]) -> PerMessageOutbox | None:
    """Lock the head of a shard and move the schedule of all its messages.

    Returns:
        The head; None if the shard is locked or empty.
    """
    try:
        with transaction.atomic(using=US, savepoint=False):
            head = _lock_head(shard, nowait=True)
            if head is None:
                return None
            now = timezone.now()
            _rows().filter(**shard).update(scheduled_for=_next(head, now), scheduled_from=now)
            return head
    except DatabaseError:
        return None


def _next(head: PerMessageOutbox, now: datetime) -> datetime:
    last = max(head.scheduled_for - head.scheduled_from, _FIRST)
    return now + min(last * 2, _LONGEST)


def _lock_head(
    shard: Mapping[str, Any], *, nowait: bool, bound: int | None = None
) -> PerMessageOutbox | None:
    rows = _rows().filter(**shard)
    if bound is not None:
        rows = rows.filter(id__lte=bound)
    head: PerMessageOutbox | None = rows.order_by("id").select_for_update(nowait=nowait).first()
    return head


def drain_shard(shard: Mapping[str, Any], *, flush_all: bool) -> int:
    """Handle a shard's messages, one transaction per group; return the calls."""
    bound = None
    if not flush_all:
        newest = _rows().filter(**shard).order_by("-id").first()
        if newest is None:
            return 0
        bound = newest.pk
    calls = 0
    while _process_next(shard, bound):
        calls += 1
    return calls


def _process_next(shard: Mapping[str, Any], bound: int | None) -> bool:
    try:
        with transaction.atomic(using=US):
            head = _lock_head(shard, nowait=bound is None, bound=bound)
            if head is None:
                return False
            _process_group(head)
            return True
    except DatabaseError:
        return False


def _process_group(head: PerMessageOutbox) -> None:
    group = _rows().filter(**_key_of(head, PerMessageOutbox.coalesced))
    newest = group.order_by("-id").first()
    oldest = group.order_by("id").first()
    if newest is None or oldest is None:
        return
    process_message.send(
        sender=find_category(newest.category),
        payload=newest.payload,
        object_identifier=newest.object_identifier,
        shard_identifier=newest.shard_identifier,
        shard_scope=newest.shard_scope,
    )
    while True:
        ids = [each for each in group.values_list("id", flat=True)[:_SLICE] if each < newest.pk]
        if not ids:
            break
        _rows().filter(id__in=ids).delete()
    newest.delete()


def process_batch() -> int:
    """Drain all due shards, as the scheduler's task does; return the calls."""
    calls = 0
    for shard in find_scheduled_shards():
        if prepare_next_from_shard(shard) is not None:
            calls += drain_shard(shard, flush_all=True)
    return calls
