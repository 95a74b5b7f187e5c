"""While an old snapshot is held, drainers spare themselves the dead."""

from __future__ import annotations

import time
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from django.db import connections, transaction

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain import ahead as horizon
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.drain.limits import LIMITS
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from silos import SiloMode, assume_silo

from .ahead import SHARDS, known, learn, sweep
from .engine import US, Kind, Worker, ids, leases, listening, message, put, tune, write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("committed", "slow_looks")
DEAD = 4000


@contextmanager
def _old_snapshot() -> Iterator[None]:
    """Keep what is deleted from now on in the indexes."""
    taken, over = Event(), Event()

    def hold() -> None:
        with transaction.atomic(using=US), connections[US].cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM hybridcloud_celloutbox LIMIT 1")
            taken.set()
            assert over.wait(60)

    with Worker(hold):
        assert taken.wait(20)
        try:
            yield
        finally:
            over.set()


class Entries(NamedTuple):
    """Entries of the outbox's indexes that were read, the dead among them."""

    by_id: int
    by_shard: int


def _entries_read() -> Entries:
    with connections[US].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(idx_tup_read) FILTER (WHERE indexrelname LIKE %s),"
            " sum(idx_tup_read) FILTER (WHERE indexrelname NOT LIKE %s)"
            " FROM pg_stat_user_indexes WHERE relname = 'hybridcloud_celloutbox'",
            ["%pkey", "%pkey"],
        )
        return Entries(*map(int, cursor.fetchone()))


def _cost_of_a_drain(*shards: int, **more: Any) -> Entries:
    """Return how many entries a drain reads that finds one more message in each of these shards."""
    shards = shards or tuple(range(1, SHARDS + 1))
    write(*(message(Kind.ORDERED, shard) for shard in shards))
    before = _entries_read()
    with listening(Kind.ORDERED) as seen:
        sweep(**more)
    assert len(seen.calls) >= len(shards)
    after = _entries_read()
    return Entries(after.by_id - before.by_id, after.by_shard - before.by_shard)


@pytest.fixture
def _dead(committed: None, slow_looks: None) -> Iterator[None]:
    """Let a drainer go ahead of many dead messages that an old snapshot keeps."""
    with _old_snapshot():
        write(*(message(Kind.ORDERED, n % SHARDS + 1) for n in range(DEAD)))
        learn()
        yield


@pytest.mark.usefixtures("_dead")
class TestUnderAnOldSnapshot:
    def test_a_drain_steps_over_nothing_that_it_knows_to_be_gone(self) -> None:
        assert sum(_cost_of_a_drain()) < DEAD / 10
        assert _cost_of_a_drain(whole=True, rounds=1).by_shard >= DEAD
        assert _cost_of_a_drain().by_shard < DEAD / 10
        assert sum(_cost_of_a_drain()) < DEAD / 10

    def test_a_look_behind_steps_over_the_dead_by_id_and_not_by_shard(self) -> None:
        waiting = put(Kind.ORDERED, shard=SHARDS + 1)
        known().settled = known().passed = waiting
        known().look_again()
        cost = _cost_of_a_drain()
        assert ids() == []
        assert cost.by_id >= DEAD
        assert cost.by_shard < DEAD / 10
        assert sum(_cost_of_a_drain()) < DEAD / 10

    def test_what_a_look_at_everything_left_of_a_deep_shard_is_ahead(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tune(messages_per_pass=1)
        tune(least_per_shard=10)
        deep = [message(Kind.ORDERED, SHARDS + 1 + n // 15, obj=n) for n in range(30)]
        # All that was written counts as settled before the look.
        known().settled = write(*deep)[-1]
        with listening(Kind.ORDERED):
            sweep(whole=True, rounds=1)
        assert len(ids()) == 10
        assert _cost_of_a_drain(SHARDS + 3).by_shard < DEAD / 10
        assert ids() == []


def _know(cells: int) -> None:
    """Let there be so many target cells, which share the time."""
    for number in range(1, cells):
        horizon.ahead_of(Engine(CellOutbox, US), f"cell {number}")


@pytest.mark.parametrize(
    ("took", "cells", "waits"),
    [
        (0.001, 2, LIMITS.look_every_s),
        (1.0, 1, LIMITS.everything_share),
        (1.0, 2, 2 * LIMITS.everything_share),
        (30.0, 1, 30 * LIMITS.everything_share),
    ],
)
def test_looks_at_everything_take_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, took: float, cells: int, waits: float
) -> None:
    learn()
    _know(cells)
    everything, now = known(), time.monotonic()
    monkeypatch.setattr(horizon, "monotonic", lambda: now)
    tune(slow_s=0.1)
    everything = known()
    took += 2 * (0.1 + LIMITS.slow_shard_s)  # as claims may take
    everything.begin(Engine(CellOutbox, US))
    everything.claimed(took / 2, 1)
    everything.claimed(took / 2, 1)
    everything.ended()
    now += waits - 0.1
    assert everything.leads
    now += 0.2
    assert not everything.leads


def test_a_drainer_whose_claims_were_slow_by_accident_goes_ahead_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn()
    tune(quick_s=60.0)
    known().look_again()
    put(Kind.ORDERED)
    with listening(Kind.ORDERED) as seen:
        sweep(rounds=1)
    assert len(seen.calls) == 1
    assert not known().leads


@pytest.mark.parametrize(
    ("took", "cells", "waits"),
    [
        (0.001, 2, LIMITS.look_every_s),
        (3.0, 1, 3 * LIMITS.behind_share),
        (3.0, 2, 6 * LIMITS.behind_share),
    ],
)
def test_looks_behind_take_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, took: float, cells: int, waits: float
) -> None:
    learn()
    _know(cells)
    waiting = put(Kind.ORDERED, shard=3)
    ahead, now = known(), time.monotonic()
    ahead.passed = waiting

    class Slow(Engine):
        """One whose statements seem to take so long."""

        def query(self, *args: Any, **more: Any) -> Any:
            nonlocal now
            now += took
            return super().query(*args, **more)

    monkeypatch.setattr(horizon, "monotonic", lambda: now)
    monkeypatch.setattr(horizon, "_rewrite_leases", lambda *_: None)
    engine = Slow(CellOutbox, US)
    ahead.look_again()
    assert [row[-1] for row in ahead.behind(engine, None)] == [waiting]
    now += waits - 0.1
    assert ahead.behind(engine, None) == []
    now += 0.2
    assert len(ahead.behind(engine, None)) == 1


def _file_of_leases() -> int:
    with connections[US].cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode('hybridcloud_celllease')")
        return int(cursor.fetchone()[0])


def _someone_elses_lease() -> Leases:
    with assume_silo(SiloMode.CELL, cell="us"):
        claim = Leases(Engine(CellOutbox, US))
        assert claim.claim_known([ShardKey(int(Kind.PLAIN.get_scope()), 77)])
    return claim


def test_a_bloated_table_of_leases_is_rewritten_and_live_leases_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn()
    theirs = _someone_elses_lease()
    before, (lease,) = _file_of_leases(), leases()
    tune(lease_bytes=0)
    known().look_again()
    _cost_of_a_drain()
    assert _file_of_leases() != before
    (now,) = leases()
    assert (now.token, now.until) == (lease.token, lease.until)
    assert now.token == theirs.token


def test_a_table_of_leases_that_is_in_use_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn()
    tune(lease_bytes=0)
    reading, over = Event(), Event()

    def read() -> None:
        with transaction.atomic(using=US), connections[US].cursor() as cursor:
            cursor.execute("SELECT 1 FROM hybridcloud_celllease")
            reading.set()
            assert over.wait(60)

    with Worker(read):
        assert reading.wait(20)
        known().look_again()
        try:
            before = _file_of_leases()
            _cost_of_a_drain()
            assert _file_of_leases() == before
        finally:
            over.set()
    assert leases() == []
