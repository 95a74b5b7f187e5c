"""Rule 7: one drainer per shard at a time, and a lost drainer's shards are taken over."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest
from django.db import connections

from hybridcloud import hooks
from hybridcloud.conf import Settings
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain import lease
from hybridcloud.outbox.drain.due import FIRST
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.switches import Switches
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
    pass_time,
    put,
    write,
)

pytestmark = [pytest.mark.rule(7), pytest.mark.usefixtures("committed")]


def eventually(condition: Any) -> None:
    """Drain again and again until a condition holds: what the beat does."""
    deadline = monotonic() + WAIT
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


class Renewals(hooks.Hooks):
    """Lets a test wait for renewals, and counts the leases that they did not find."""

    def __init__(self) -> None:
        self._done = threading.Semaphore(0)
        self.lost = 0

    def after_renew(self, lost: int) -> None:
        self.lost += lost
        self._done.release()

    def expect(self) -> None:
        """Wait for one that began after this call: the first to end may have begun before."""
        while self._done.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self._done.acquire(timeout=WAIT)


@pytest.fixture
def keen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a keeper renew as soon as a handler runs; without it each renewal would cost seconds."""
    monkeypatch.setattr(Settings, "renew_every", 0.05)
    # Another test's may sleep for as long as that test's lease allowed.
    monkeypatch.setattr(lease, "_the_keeper", None)


def test_a_handler_that_runs_longer_than_the_lease_keeps_its_shard(keen: None) -> None:
    """The keeper's thread renews, on a connection of its own."""
    put(obj=1)
    renewals = Renewals()
    by_others: list[int] = []

    def act(**_: Any) -> None:
        for _ in range(3):
            pass_time(10)  # of the lease's 15 s
            renewals.expect()
            with Worker(drain_us) as other:
                pass
            by_others.append(other.result)

    with listening(Kind.PLAIN, act=act) as seen, hooks.installed(renewals), Worker(drain_us):
        pass
    assert by_others == [0, 0, 0]
    assert renewals.lost == 0
    assert len(seen.calls) == 1
    assert ids() == []
    assert failures() == []


def test_a_pass_of_handlers_that_each_take_a_part_of_the_lease_keeps_its_shards() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in range(4)))

    def act(**_: Any) -> None:
        assert threading.current_thread() is drainer
        pass_time(6)  # of the lease's 15 s
        with Worker(drain_us):
            pass

    drainer = Worker(drain_us)
    with listening(Kind.ORDERED, act=act) as seen, drainer:
        pass
    assert seen.objects == [0, 1, 2, 3]
    assert ids() == []


def test_ending_the_drainers_session_while_its_handler_runs_costs_it_nothing(keen: None) -> None:
    """It renews from another session, and opens a new one to acknowledge."""
    put(obj=1)
    renewals = Renewals()
    started = threading.Event()

    def act(**_: Any) -> None:
        renewals.expect()
        with Worker(_terminate_others):
            pass
        started.set()
        for _ in range(2):
            with Worker(lambda: pass_time(10)):  # of the lease's 15 s
                pass
            renewals.expect()

    with (
        listening(Kind.PLAIN, act=act) as seen,
        hooks.installed(renewals),
        Worker(drain_us) as drainer,
    ):
        assert started.wait(WAIT)
        while drainer.is_alive():
            _drain_until_it_works()
    assert renewals.lost == 0
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
    with listening(Kind.ORDERED) as seen, hooks.installed(stalled), Worker(drain_us):
        assert stalled.reached.wait(WAIT)
        pass_time(60)  # as if the machine had slept: another drainer takes the shard
        drain_us()
        stalled.open.set()
    handled = [each for each in seen.objects if each]
    assert sorted(handled) == [1, 2]
    assert ids() == []
    assert leases() == []


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


def test_a_hung_handler_loses_its_shard_after_its_timeout(keen: None) -> None:
    """The timeout of this scope is 60 s, the lease 15 s."""
    put(Kind.BRIEF, obj=1)
    let_go, hanging = threading.Event(), threading.Event()
    renewals = Renewals()

    def act(**_: Any) -> None:
        if not hanging.is_set():
            hanging.set()
            assert let_go.wait(3 * WAIT)

    with listening(Kind.BRIEF, act=act) as seen, hooks.installed(renewals), Worker(drain_us):
        try:
            assert hanging.wait(WAIT)
            pass_time(10)
            renewals.expect()
            assert drain_us() == 0, "renewed before its timeout"
            pass_time(60)
            # A renewal on its way gives it one more lease, and were there others, it would stay.
            with connections[US].cursor() as cursor:
                cursor.execute(
                    "UPDATE hybridcloud_celllease SET until = clock_timestamp() + interval '0.5 s'"
                )
            eventually(lambda: len(seen.calls) > 1)
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
        pass_time(15)
        drain_us()
    assert sorted(seen.objects) == [0, 1, 2]
    assert failures() == [], "one crash of a healthy pass is nobody's attempt"
    assert leases() == []
