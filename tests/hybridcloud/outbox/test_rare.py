"""What happens rarely: a shard, message or session that is gone at some step; bounds that are reached."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, OperationalError, transaction

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox, RetryLater
from hybridcloud.outbox.drain import ahead as going_ahead
from hybridcloud.outbox.drain import lease as leasing
from hybridcloud.outbox.drain import parked as parking
from hybridcloud.outbox.drain.ahead import Ahead
from hybridcloud.outbox.drain.lease import Keeper, Leases
from hybridcloud.outbox.drain.shard import Done
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellFailure

from .ahead import known, learn, sweep
from .engine import (
    US,
    WAIT,
    Gate,
    Kind,
    Lane,
    Worker,
    drain_us,
    execute,
    failures,
    gate,
    ids,
    leases,
    listening,
    lose_drainer,
    make_due,
    parked,
    put,
)
from .wire import traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.usefixtures("committed")


class _After(hooks.Hooks):
    """Runs a statement once, at the first time that messages were read."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def after_fetch(self, count: int) -> None:
        text, self._text = self._text, None
        if text is not None:
            with Worker(lambda: execute(text)):
                pass


@pytest.mark.usefixtures("slow_looks")
def test_what_is_known_of_shards_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going_ahead, "_MOST_KNOWN", 1)
    learn()
    mine = known()
    engine = Engine(CellOutbox, US)
    for shards in ((1, 2), (3,)):
        mine.drained(engine, Done(emptied=[ShardKey(1, shard) for shard in shards]), 7)
    assert mine.emptied == {ShardKey(1, 3): 7}


@pytest.mark.usefixtures("slow_looks")
def test_a_shard_that_another_drainer_has_is_left_out_when_going_ahead() -> None:
    learn()
    put(Kind.ORDERED, 1, obj=1)
    other = Leases(Engine(CellOutbox, US))
    assert other.claim_known([ShardKey(int(Lane.ORDERED), 1)])
    with listening(Kind.ORDERED) as seen:
        assert known().leads
        sweep(rounds=1)
        assert seen.objects == []
        other.release()
        known().look_again()
        sweep()
    assert seen.objects == [1]


@pytest.mark.usefixtures("slow_looks")
def test_what_a_success_frees_is_looked_at_in_the_same_sweep_when_going_ahead() -> None:
    learn()
    fails = [True]

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 1 and fails:
            raise LookupError

    put(Kind.BY_CATEGORY, obj=1)
    put(Kind.BY_CATEGORY, obj=2)
    with listening(Kind.BY_CATEGORY, act=act) as seen:
        sweep()
        assert len(parked("held")) == 2
        fails.clear()
        make_due()
        seen.calls.clear()
        assert known().leads
        sweep()
    assert seen.objects == [1, 2]


def test_a_round_that_was_left_off_has_nothing_to_end() -> None:
    assert Ahead([]).went_ahead({}) is False


@pytest.mark.rule(8)
def test_a_suspect_shard_that_is_lost_before_its_mark_calls_nobody() -> None:
    pk = put()
    lose_drainer(Lane.PLAIN)
    steal = "UPDATE hybridcloud_celllease SET token = 42, owner = 'successor'"
    with hooks.installed(_After(steal)), listening(Kind.PLAIN) as seen:
        drain_us()
    assert (seen.objects, ids(), failures()) == ([], [pk], [])
    assert [each.owner for each in leases()] == ["successor"]


def test_leases_that_hold_nothing_are_released_by_no_statement() -> None:
    engine = Engine(CellOutbox, US)
    with traffic(US) as passed:
        Leases(engine).release()
    assert passed.round_trips == 0


def test_the_keeper_goes_on_after_a_renewal_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, again, tries = Keeper(), threading.Event(), []
    held = Leases(Engine(CellOutbox, US))

    def renew() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise DatabaseError("gone")
        keeper.discard(held)
        again.set()

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)
    monkeypatch.setattr(leasing, "time", clock)
    monkeypatch.setattr(keeper, "_renew_long_running", renew)
    keeper.add(held)
    assert again.wait(WAIT)
    assert "Leases not renewed" in caplog.text


@pytest.mark.parametrize(("kind", "other"), [(Kind.ORDERED_BY_OBJECT, 1), (Kind.BY_CATEGORY, 2)])
def test_what_a_success_frees_comes_back_in_parts(
    kind: Kind, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kind, obj=1)
    fails = [True]

    def act(**_: Any) -> None:
        if fails:
            raise LookupError

    with listening(kind, act=act):
        drain_us()
        put(kind, obj=other)
        drain_us()
        assert len(parked("held")) == 2
        fails.clear()
        make_due()
        # Each part is then full, and another is asked for, until one is empty.
        monkeypatch.setattr(parking, "_MOST", 1)
        drain_us()
    assert (ids(), parked()) == ([], [])


@pytest.mark.rule(2)
def test_an_atomic_handler_takes_older_parked_messages_of_its_object_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = replace(Lane.ATOMIC.policy, coalesce=True)
    monkeypatch.setattr(Lane.ATOMIC, "policy", policy)
    put(Kind.ATOMIC, obj=1, payload="old")

    def later(**_: Any) -> None:
        raise RetryLater(600)

    with listening(Kind.ATOMIC, act=later):
        drain_us()
    assert len(parked("delayed")) == 1
    put(Kind.ATOMIC, obj=1, payload="new")
    with listening(Kind.ATOMIC) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == ["new"]
    assert (ids(), parked()) == ([], [])


def test_the_seam_behind_an_acknowledgement_names_the_messages() -> None:
    pk = put()
    acknowledged: list[int] = []

    class Watch(hooks.Hooks):
        def after_ack(self, ids: Sequence[int]) -> None:
            acknowledged.extend(ids)

    with hooks.installed(Watch()), listening(Kind.PLAIN):
        drain_us()
    assert acknowledged == [pk]


@pytest.mark.rule(8)
def test_a_crash_is_that_of_the_message_that_ran_and_of_no_other() -> None:
    put(Kind.BY_OBJECT, obj=1)
    running = put(Kind.BY_OBJECT, obj=2)
    lose_drainer(Lane.BY_OBJECT, handling=running)
    with listening(Kind.BY_OBJECT) as seen:
        drain_us()
    assert ([each.object_identifier for each in failures()], seen.objects) == ([2], [1])


@pytest.mark.rule(8)
def test_a_crash_of_a_message_that_is_gone_is_nobodys() -> None:
    gone = put(Kind.BY_OBJECT, obj=2)
    execute("DELETE FROM hybridcloud_celloutbox")
    put(Kind.BY_OBJECT, obj=1)
    lose_drainer(Lane.BY_OBJECT, handling=gone)
    with listening(Kind.BY_OBJECT) as seen:
        drain_us()
    assert (failures(), seen.objects, leases()) == ([], [1], [])


@pytest.mark.rule(8)
def test_a_shard_whose_crash_is_recorded_by_another_goes_no_further() -> None:
    """Its lease was lost while the crash was being settled."""
    running = put(Kind.ORDERED, obj=1)
    put(Kind.ORDERED, obj=2)
    lose_drainer(Lane.ORDERED, handling=running)
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert ([each.attempts for each in failures()], seen.objects) == ([1], [])


def test_an_at_most_once_message_that_is_gone_is_not_called() -> None:
    put(Kind.ONCE)
    delete = "DELETE FROM hybridcloud_celloutbox"
    with hooks.installed(_After(delete)), listening(Kind.ONCE) as seen:
        drain_us()
    assert (seen.objects, ids(), parked()) == ([], [], [])


def test_a_statement_that_fails_in_an_open_transaction_is_not_repeated() -> None:
    engine = Engine(CellOutbox, US)
    locked = gate("after_claim")

    def hold() -> None:
        with transaction.atomic(using=US):
            execute("LOCK TABLE hybridcloud_celllease IN ACCESS EXCLUSIVE MODE")
            Gate._stop(locked)

    def ask() -> None:
        with transaction.atomic(using=US):
            execute("SET LOCAL lock_timeout = '5ms'")
            engine.query("stale", {})

    with Worker(hold):
        assert locked.reached.wait(WAIT)
        try:
            with pytest.raises(OperationalError):
                ask()
        finally:
            locked.open.set()


def test_the_victim_of_a_deadlock_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(CellOutbox, US)
    # A session that is open and works, unlike one that was lost.
    engine.query("stale", {})
    attempt: Callable[..., Any] = Engine._attempt
    victims: list[int] = []

    def fails_once(self: Engine, *arguments: Any, **more: Any) -> Any:
        if not victims:
            victims.append(1)
            cause = Exception()
            cause.sqlstate = "40P01"  # type: ignore[attr-defined]
            raise OperationalError from cause
        return attempt(self, *arguments, **more)

    monkeypatch.setattr(Engine, "_attempt", fails_once)
    assert engine.query("stale", {}) == [(False,)]


def test_the_next_try_of_a_failure_is_after_twice_its_last_delay() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for seconds, wanted in ((0, 1), (4, 8), (3600, 3600)):
        row = CellFailure(scheduled_from=now, scheduled_for=now + timedelta(seconds=seconds))
        assert row.next_schedule(now) - now == timedelta(seconds=wanted)
