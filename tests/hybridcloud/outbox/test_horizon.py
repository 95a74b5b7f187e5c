"""Going ahead by ids passes nothing by and changes no order."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.declare.signals import RetryLater
from hybridcloud.outbox.drain.loop import Drainer
from hybridcloud.outbox.drain.parked import bring_back
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .ahead import known, learn, sweep
from .engine import (
    US,
    Kind,
    Worker,
    drain_us,
    ids,
    listening,
    message,
    parked,
    put,
    tune,
    tuned,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("committed", "slow_looks")


@contextmanager
def _late() -> Iterator[Callable[[], None]]:
    """Write a message that is committed only once the block calls what it is given."""
    inserted, wanted = Event(), Event()

    def write_late() -> None:
        with transaction.atomic(using=US):
            with outbox_context(flush=False):
                message(Kind.ORDERED, payload="late").save(using=US)
            inserted.set()
            assert wanted.wait(20)

    with Worker(write_late) as writer:
        assert inserted.wait(20)

        def commit() -> None:
            wanted.set()
            writer.finish()

        yield commit


@pytest.mark.rule(3)
def test_what_commits_late_is_handled_before_what_was_written_after_it() -> None:
    learn()
    with listening(Kind.ORDERED) as seen, _late() as commit:
        for n in range(3):  # higher ids, and the late one is open all the while
            put(Kind.ORDERED, payload=n)
            drain_us()
        assert known().leads
        commit()
        put(Kind.ORDERED, payload="after")
        drain_us()
    assert [payload for *_, payload in seen.calls] == [0, 1, 2, "late", "after"]
    assert ids() == []


@pytest.mark.rule(3)
def test_what_commits_while_a_drainer_goes_ahead_of_it_is_not_passed_by() -> None:
    learn()
    with listening(Kind.ORDERED) as seen, _late() as commit:

        class Late(hooks.Hooks):
            """A writer that commits between a look ahead and what follows from it."""

            def after_fetch(self, count: int) -> None:
                commit()

        put(Kind.ORDERED, shard=2)
        drain_us()  # from now on its id would be settled, but for the late one
        put(Kind.ORDERED, shard=2)
        with hooks.installed(Late()):
            sweep(rounds=1)
        seen.calls.clear()
        drain_us()
    assert [payload for *_, payload in seen.calls] == ["late"]


def test_a_shard_has_one_turn_in_a_round_however_many_looks_it_fills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn()
    tune(rows_per_look=3)
    tune(messages_per_pass=2)
    tune(least_per_shard=2)
    write(*(message(Kind.ORDERED, 1, obj=n) for n in range(10)), message(Kind.ORDERED, 2, obj=100))
    with listening(Kind.ORDERED) as seen:
        drain_us()
        assert known().leads
    assert seen.objects == [0, 1, 100, *range(2, 10)]
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
    known().emptied[ShardKey(int(Kind.ORDERED.get_scope()), 3)] = 10**12
    with listening(Kind.ORDERED) as seen:
        put(Kind.ORDERED, shard=2)
        sweep(whole=True)
        put(Kind.ORDERED, shard=3)
        drain_us()
    assert len(seen.calls) == 2


def test_messages_that_were_passed_are_found_by_the_next_look_behind() -> None:
    learn()
    waiting = put(Kind.ORDERED, shard=3)
    known().settled = known().passed = waiting
    known().emptied[ShardKey(int(Kind.ORDERED.get_scope()), 3)] = waiting
    with listening(Kind.ORDERED) as seen:
        drain_us()
        assert seen.calls == []
        known().look_again()
        drain_us()
    assert len(seen.calls) == 1
    assert ids() == []


def test_a_deep_shard_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    learn()
    tune(messages_per_pass=20)
    write(*(message(Kind.ORDERED, obj=n) for n in range(50)))
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert seen.objects == list(range(50))


@pytest.mark.parametrize("is_passed", [False, True])
def test_what_a_switch_stops_is_not_handled_ahead_either_nor_behind(*, is_passed: bool) -> None:
    learn()
    waiting = put(Kind.ORDERED, shard=4)
    if is_passed:
        known().settled = known().passed = waiting
        known().look_again()
    with (
        listening(Kind.ORDERED) as seen,
        override_options({DISABLED_SHARDS: [{"scope": "ORDERED", "identifier": 4}]}),
    ):
        drain_us()
    assert seen.calls == []
    assert len(ids()) == 1


@pytest.mark.rule(5)
def test_a_deep_shard_is_neither_passed_by_nor_taken_for_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read in parts, while shards that are read whole move on what counts as settled."""
    tune(messages_per_pass=1)
    tune(least_per_shard=2)
    learn()
    write(*(message(Kind.ORDERED, 1, obj=n) for n in range(7)), message(Kind.ORDERED, 2, obj=100))
    with listening(Kind.ORDERED) as seen:
        drain_us()
        assert known().leads
    assert [each for each in seen.objects if each < 100] == list(range(7))
    assert ids() == []


@pytest.mark.rule(5)
@pytest.mark.parametrize(("deep", "budget"), [(3, 60), (1, 0)])
@pytest.mark.parametrize("most", [1, 256])
def test_what_had_no_turn_is_not_passed_by(
    monkeypatch: pytest.MonkeyPatch, most: int, deep: int, budget: float
) -> None:
    """Whether a shard's turn was over, or the time of the drain."""
    tune(time_slice_s=0.0)
    tune(longest_unacknowledged_s=0.0)
    learn()
    write(*(message(Kind.ORDERED, 1, obj=n) for n in range(deep)))
    known().settled = put(Kind.ORDERED, 2, obj=100)
    with listening(Kind.ORDERED) as seen:
        sweep(budget=budget, most=most)
        sweep(budget=60)
        assert known().leads
    assert sorted(seen.objects) == [*range(deep), 100]
    assert ids() == []


def test_a_look_at_everything_that_was_left_off_moves_nothing_on() -> None:
    """What it left off for may have been more than it saw."""
    learn()
    engine = Engine(CellOutbox, US)
    known().begin(engine)
    known().ahead(engine, None)
    before = known().passed
    known().passed -= 1
    known().ended()
    assert known().passed == before - 1


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_stop_left_is_not_passed_by(*, whole: bool) -> None:
    learn()
    known().settled = put(Kind.ORDERED)
    is_stopped = False

    class Stop(hooks.Hooks):
        """One that comes when messages have been read."""

        def after_fetch(self, count: int) -> None:
            nonlocal is_stopped
            is_stopped = True

    with listening(Kind.ORDERED) as seen, assume_silo(SiloMode.CELL, cell="us"):
        with hooks.installed(Stop()):
            Drainer(CellOutbox, US, limits=tuned.limits, stopped=lambda: is_stopped).sweep(
                whole=whole
            )
        assert (seen.calls, len(ids())) == ([], 1)
        assert known().leads
        drain_us()
    assert len(seen.calls) == 1


def test_behind_a_look_at_everything_a_round_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    learn()
    tune(rows_per_look=1)
    first, _ = put(Kind.ORDERED, 1), put(Kind.ORDERED, 2)
    engine = Engine(CellOutbox, US)
    for _ in range(2):
        known().begin(engine)
        known().ended()
        assert known().ahead(engine, None)[0][-1] == first
        assert known().went_ahead({})
