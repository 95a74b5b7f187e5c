"""Going ahead by ids: what it spares while an old snapshot is held, and that it passes nothing by."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from hybridcloud.outbox import CellOutbox, batch, drain, horizon, outbox_context, reading
from hybridcloud.outbox import switches as kill_switches
from hybridcloud.outbox.claim import Leases
from hybridcloud.outbox.drain import Drainer
from hybridcloud.outbox.parked import bring_back
from hybridcloud.outbox.signals import RetryLater
from hybridcloud.outbox.statements import Engine
from hybridcloud.outbox.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .engine import (
    US,
    Kind,
    Worker,
    drain_us,
    ids,
    leases,
    listening,
    message,
    parked,
    put,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.horizon import Horizon

pytestmark = pytest.mark.usefixtures("committed")
SHARDS = 5


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every look seem slow, so that drainers go ahead whenever they may."""
    monkeypatch.setattr(horizon, "_SLOW", -1000.0)
    monkeypatch.setattr(horizon, "_SLOW_CLAIMS", 1)
    monkeypatch.setattr(horizon, "_SETTLE_EVERY", 0.0)
    horizon.forget()
    yield
    horizon.forget()


def known() -> Horizon:
    return horizon.horizon_of(Engine(CellOutbox, US), None)


def learn() -> None:
    """Drain until the drainer goes ahead."""
    for n in range(3):
        write(*(message(Kind.ORDERED, shard, obj=100 + n) for shard in range(1, SHARDS + 1)))
        with listening(Kind.ORDERED):
            drain_us()
    assert known().leads


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


def _entries_read() -> int:
    with connections[US].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'hybridcloud_celloutbox'"
        )
        return int(cursor.fetchone()[0])


def _cost_of_a_drain(**more: Any) -> int:
    write(*(message(Kind.ORDERED, shard) for shard in range(1, SHARDS + 1)))
    before = _entries_read()
    with listening(Kind.ORDERED) as seen:
        drain_us(**more)
    assert len(seen.calls) == SHARDS
    return _entries_read() - before


def test_under_an_old_snapshot_a_drain_steps_over_nothing_that_it_knows_to_be_gone() -> None:
    dead = 4000
    with _old_snapshot():
        write(*(message(Kind.ORDERED, n % SHARDS + 1) for n in range(dead)))
        learn()
        assert _cost_of_a_drain() < dead / 10
        known().look_again()
        assert _cost_of_a_drain() >= dead


@pytest.mark.rule(3)
def test_what_commits_late_is_handled_before_what_was_written_after_it() -> None:
    learn()
    inserted, commit = Event(), Event()

    def write_late() -> None:
        with transaction.atomic(using=US):
            with outbox_context(flush=False):
                message(Kind.ORDERED, payload="late").save(using=US)
            inserted.set()
            assert commit.wait(20)

    with listening(Kind.ORDERED) as seen, Worker(write_late) as writer:
        assert inserted.wait(20)
        for n in range(3):  # higher ids, and the late one is open all the while
            put(Kind.ORDERED, payload=n)
            drain_us()
        assert known().leads
        commit.set()
        writer.finish()
        put(Kind.ORDERED, payload="after")
        drain_us()
    assert [payload for *_, payload in seen.calls] == [0, 1, 2, "late", "after"]
    assert ids() == []


@pytest.mark.rule(3)
@pytest.mark.parametrize(
    ("kind", "told"), [(Kind.ORDERED, ["first", "second"]), (Kind.PLAIN, ["second"])]
)
def test_what_another_drainer_brings_back_does_not_come_after_what_is_newer(
    kind: Kind, told: list[str]
) -> None:
    learn()
    is_early = True

    def act(*, payload: Any, **_: Any) -> None:
        if payload == "first" and is_early:
            raise RetryLater(timedelta(hours=1))

    with listening(Kind.ORDERED, Kind.PLAIN, act=act) as seen:
        put(kind, payload="first")
        with override_options(
            {DISABLED_SHARDS: [{"scope": kind.get_scope().name, "identifier": 1}]}
        ):
            # What is settled moves on beyond its id, before it is read.
            for _ in range(3):
                put(Kind.ORDERED, shard=2)
                drain_us()
        known().look_again()
        drain_us()
        assert known().settled > parked()[0]
        assert known().leads
        is_early = False
        engine = Engine(CellOutbox, US)
        assert bring_back(engine, kill_switches.current(), include_delayed=True) == 1
        seen.calls.clear()
        put(kind, payload="second")
        drain_us()
        known().look_again()
        drain_us()
    assert [payload for *_, payload in seen.calls] == told
    assert ids() == parked() == []


def test_a_look_at_everything_forgets_what_may_be_wrong() -> None:
    learn()
    # As if ids had begun again, in a database that was restored.
    known().emptied[(int(Kind.ORDERED.get_scope()), 3)] = 10**12
    known().look_again()
    for shard in (2, 3):
        put(Kind.ORDERED, shard=shard)
        with listening(Kind.ORDERED) as seen:
            drain_us()
        assert len(seen.calls) == 1


def test_messages_that_were_passed_are_found_by_the_next_look_at_everything() -> None:
    learn()
    waiting = put(Kind.ORDERED, shard=3)
    known().settled = known().passed = waiting
    known().emptied[(int(Kind.ORDERED.get_scope()), 3)] = waiting
    with listening(Kind.ORDERED) as seen:
        drain_us()
        assert seen.calls == []
        known().look_again()
        drain_us()
    assert len(seen.calls) == 1
    assert ids() == []


def test_a_deep_shard_is_left_for_the_looks_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    learn()
    known().look_again()
    monkeypatch.setattr(reading, "MESSAGES_PER_PASS", 20)
    write(*(message(Kind.ORDERED, obj=n) for n in range(50)))
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert seen.objects == list(range(50))


def test_what_a_switch_stops_is_not_handled_ahead_either() -> None:
    learn()
    put(Kind.ORDERED, shard=4)
    with (
        listening(Kind.ORDERED) as seen,
        override_options({DISABLED_SHARDS: [{"scope": "ORDERED", "identifier": 4}]}),
    ):
        drain_us()
    assert seen.calls == []
    assert len(ids()) == 1


def _file_of_leases() -> int:
    with connections[US].cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode('hybridcloud_celllease')")
        return int(cursor.fetchone()[0])


def _someone_elses_lease() -> Leases:
    with assume_silo(SiloMode.CELL, cell="us"):
        claim = Leases(Engine(CellOutbox, US))
        assert claim.claim_known([(int(Kind.PLAIN.get_scope()), 77)])
    return claim


def test_a_bloated_table_of_leases_is_rewritten_and_live_leases_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn()
    theirs = _someone_elses_lease()
    before, (lease,) = _file_of_leases(), leases()
    monkeypatch.setattr(horizon, "LEASE_BYTES", 0)
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
    monkeypatch.setattr(horizon, "LEASE_BYTES", 0)
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


@pytest.mark.rule(5)
def test_a_deep_shard_is_neither_passed_by_nor_taken_for_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read in parts, while shards that are read whole move on what counts as settled."""
    monkeypatch.setattr(reading, "MESSAGES_PER_PASS", 1)
    monkeypatch.setattr(reading, "LEAST_PER_SHARD", 2)
    learn()
    write(*(message(Kind.ORDERED, 1, obj=n) for n in range(7)), message(Kind.ORDERED, 2, obj=100))
    with listening(Kind.ORDERED) as seen:
        drain_us()
        assert known().leads
    assert [each for each in seen.objects if each < 100] == list(range(7))
    assert ids() == []


@pytest.mark.rule(5)
@pytest.mark.parametrize(("deep", "budget"), [(3, 60), (1, 0)])
def test_what_had_no_turn_is_not_passed_by(
    monkeypatch: pytest.MonkeyPatch, deep: int, budget: float
) -> None:
    """Whether a shard's turn was over, or the time of the drain."""
    monkeypatch.setattr(drain, "TURN", 0.0)
    monkeypatch.setattr(batch, "LONGEST_UNACKNOWLEDGED", 0.0)
    learn()
    write(*(message(Kind.ORDERED, 1, obj=n) for n in range(deep)))
    put(Kind.ORDERED, 2, obj=100)
    with listening(Kind.ORDERED) as seen, assume_silo(SiloMode.CELL, cell="us"):
        Drainer(CellOutbox, US).sweep(budget=budget)
        Drainer(CellOutbox, US).sweep(budget=60)
        assert known().leads
    assert sorted(seen.objects) == [*range(deep), 100]
    assert ids() == []
