"""Rule 7: one drainer per shard at a time, and a lost drainer's shards are taken over."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest
from django.db import connections

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.claim import FIRST, Leases
from hybridcloud.outbox.statements import Engine
from hybridcloud.outbox.switches import Switches
from silos import SiloMode, assume_silo

from .engine import (
    US,
    WAIT,
    Child,
    Kind,
    Worker,
    drain_us,
    failures,
    gate,
    ids,
    leases,
    listening,
    message,
    put,
    write,
)

pytestmark = [pytest.mark.rule(7), pytest.mark.usefixtures("committed")]


def eventually(condition: Any, *, within: float = WAIT) -> None:
    """Drain again and again until a condition holds: what the beat does."""
    deadline = monotonic() + within
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline, "it never came true"
        drain_us()
        pause.wait(0.05)


def test_two_drainers_never_run_one_shards_handlers_at_the_same_time() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in range(60)))
    running, most = 0, 0
    lock = threading.Lock()

    def act(**_: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    with listening(Kind.ORDERED, act=act) as seen:
        workers = [Worker(drain_us) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.finish()
        drain_us()
    assert most == 1
    assert seen.objects == list(range(60))


def test_a_leased_shard_is_not_claimed_again() -> None:
    put(obj=1)
    engine = Engine(CellOutbox, US)
    with assume_silo(SiloMode.CELL, cell="us"):
        first, second = Leases(engine), Leases(engine)
        assert first.claim_due(after=FIRST, most=10, switches=Switches())
        assert not second.claim_due(after=FIRST, most=10, switches=Switches())
        assert not second.claim_known(first.keys)
        assert not second.claim_suspect(switches=Switches())
        first.release()
        assert second.claim_due(after=FIRST, most=10, switches=Switches())


def test_a_handler_that_runs_longer_than_the_lease_keeps_its_shard() -> None:
    """LEASE is 1.5 s in tests; the keeper's thread renews, on a connection of its own."""
    put(obj=1)
    renewed = threading.Event()

    class Watch(hooks.Hooks):
        count = 0

        def after_renew(self, lost: int) -> None:
            assert lost == 0
            self.count += 1
            if self.count >= 6:
                renewed.set()

    started = threading.Event()

    def act(**_: Any) -> None:
        started.set()
        assert renewed.wait(WAIT)

    with (
        listening(Kind.PLAIN, act=act) as seen,
        hooks.installed(Watch()),
        Worker(drain_us) as drainer,
    ):
        assert started.wait(WAIT)
        while not renewed.is_set() and drainer.is_alive():
            assert drain_us() == 0
            renewed.wait(0.05)
    assert len(seen.calls) == 1
    assert ids() == []
    assert failures() == []


def test_a_pass_of_handlers_that_each_take_a_part_of_the_lease_keeps_its_shards() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in range(4)))
    pause, started = threading.Event(), threading.Event()

    def act(**_: Any) -> None:
        assert threading.current_thread() is drainer
        started.set()
        pause.wait(0.6)  # LEASE is 1.5 s

    drainer = Worker(drain_us)
    with listening(Kind.ORDERED, act=act) as seen, drainer:
        assert started.wait(WAIT)
        while drainer.is_alive():
            drain_us()
            pause.wait(0.02)
    assert seen.objects == [0, 1, 2, 3]
    assert ids() == []


def test_ending_the_drainers_session_while_its_handler_runs_costs_it_nothing() -> None:
    """It renews from another session, and opens a new one to acknowledge."""
    put(obj=1)
    renewed = threading.Semaphore(0)

    class Watch(hooks.Hooks):
        def after_renew(self, lost: int) -> None:
            assert lost == 0
            renewed.release()

    started = threading.Event()

    def act(**_: Any) -> None:
        with Worker(_terminate_others):
            pass
        started.set()
        for _ in range(5):
            assert renewed.acquire(timeout=WAIT)

    with (
        listening(Kind.PLAIN, act=act) as seen,
        hooks.installed(Watch()),
        Worker(drain_us) as drainer,
    ):
        assert started.wait(WAIT)
        while drainer.is_alive():
            _drain_until_it_works()
    assert len(seen.calls) == 1
    assert ids() == []
    assert failures() == []


def _terminate_others() -> None:
    with connections[US].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _drain_until_it_works() -> None:
    from django.db import OperationalError

    try:
        drain_us()
    except OperationalError:
        connections[US].close()


def test_a_worker_that_was_stalled_past_its_lease_handles_nothing_more_of_it() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in range(3)))
    stalled = gate("after_handler")
    with listening(Kind.ORDERED) as seen, hooks.installed(stalled), Worker(drain_us) as worker:
        assert stalled.reached.wait(WAIT)
        with connections[US].cursor() as cursor:
            # As if the machine had slept: the lease lapsed, and another drainer took the shard.
            cursor.execute("UPDATE hybridcloud_celllease SET until = '2020-01-01'")
        _forget_renewals(worker)
        drain_us()
        stalled.open.set()
    handled = [each for each in seen.objects if each]
    assert sorted(handled) == [1, 2]
    assert ids() == []
    assert leases() == []


def _forget_renewals(_: Worker) -> None:
    """Let the stalled pass believe that its lease is old, as it would be after a stall."""
    from hybridcloud.outbox import claim

    for each in claim._keeper()._passes:
        each.renewed_at -= 60


def test_a_stalled_workers_backoff_and_release_are_fenced_by_the_token() -> None:
    put(obj=1)

    def act(**_: Any) -> None:
        def steal() -> None:
            with connections[US].cursor() as cursor:
                cursor.execute("UPDATE hybridcloud_celllease SET token = 42, owner = 'successor'")

        with Worker(steal):
            pass
        raise ValueError

    with listening(Kind.PLAIN, act=act):
        drain_us()
    assert failures() == []
    assert [(lease.token, lease.owner) for lease in leases()] == [(42, "successor")]


def test_a_hung_handler_loses_its_shard_after_its_timeout() -> None:
    """HANDLER_TIMEOUT of this scope is 1 s, the lease 1.5 s."""
    put(Kind.BRIEF, obj=1)
    let_go, hanging = threading.Event(), threading.Event()

    def act(**_: Any) -> None:
        if not hanging.is_set():
            hanging.set()
            assert let_go.wait(WAIT)

    with listening(Kind.BRIEF, act=act) as seen, Worker(drain_us):
        try:
            assert hanging.wait(WAIT)
            eventually(lambda: len(seen.calls) > 1, within=8)
        finally:
            let_go.set()
    assert ids() == []


@pytest.mark.parametrize("step", ["handler", "after_handler", "before_ack"])
def test_a_killed_drainers_shards_are_taken_over_and_nothing_is_lost(step: str) -> None:
    for obj in range(3):
        put(shard=obj, obj=obj)
    with Child("drain", stop_at=step, object=1 if step != "before_ack" else None) as child:
        child.expect("stopped")
        child.kill()
    assert len(ids()) == 3
    with listening(Kind.PLAIN) as seen:
        assert drain_us() == 0, "its leases hold until they lapse"
        eventually(lambda: not ids())
    assert sorted(seen.objects) == [0, 1, 2]
    assert failures() == [], "one crash of a healthy pass is nobody's attempt"
    assert leases() == []
