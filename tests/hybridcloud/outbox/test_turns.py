"""More to do than time: no shard and no cell has all of it."""

from __future__ import annotations

from contextlib import nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver import inline as direct
from hybridcloud.outbox.drain.due import RoundRobin
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo

from .ahead import known, learn, sweep
from .engine import US, Kind, drain_us, ids, leases, listening, message, put, tune, tuned, write

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Watcher(hooks.Hooks):
    """Somebody who watches each handler: so each group is looked at closely."""

    def before_handler(self, call: Any) -> None:
        """See it."""


@pytest.fixture(autouse=True)
def _acknowledged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each handler seem slow: the time is looked at when messages are acknowledged."""
    tune(longest_unacknowledged_s=0.0)


@pytest.fixture(params=["in a row", "looked at closely"])
def way(request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    return nullcontext() if request.param == "in a row" else hooks.installed(Watcher())


@pytest.mark.usefixtures("committed")
class TestShards:
    def test_a_shard_whose_turn_is_over_lets_the_others_have_theirs(
        self, monkeypatch: pytest.MonkeyPatch, way: AbstractContextManager[object]
    ) -> None:
        tune(time_slice_s=0.0)
        write(*(message(Kind.ORDERED, 1, obj=n) for n in (11, 12, 13)))
        write(*(message(Kind.ORDERED, 2, obj=n) for n in (21, 22)))
        put(Kind.ORDERED, 3, obj=31)
        with listening(Kind.ORDERED) as seen, way:
            drain_us()
        assert seen.objects == [11, 21, 31, 12, 22, 13]
        assert (ids(), leases()) == ([], [])

    def test_a_drain_goes_on_behind_the_shards_that_had_their_turn_in_the_last_one(
        self, way: AbstractContextManager[object]
    ) -> None:
        write(*(message(Kind.ORDERED, 1, obj=n) for n in (11, 12)))
        put(Kind.ORDERED, 2, obj=21)
        put(Kind.ORDERED, 3, obj=31)
        with listening(Kind.ORDERED) as seen, way:
            for _ in range(4):
                sweep(budget=0)
        assert seen.objects == [11, 21, 31, 12]
        assert (ids(), leases()) == ([], [])

    def test_a_drain_goes_on_behind_the_passes_of_the_last_one(self) -> None:
        put(Kind.ORDERED, 1, obj=11)
        put(Kind.ORDERED, 2, obj=21)
        put(Kind.ORDERED, 3, obj=31)

        def act(*, object_identifier: int, **_: Any) -> None:
            if object_identifier < 15:
                put(Kind.ORDERED, 1, obj=object_identifier + 1)

        with listening(Kind.ORDERED, act=act) as seen:
            for _ in range(3):
                sweep(budget=0, most=1)
        assert seen.objects == [11, 21, 31]

    def test_a_shard_that_is_looked_at_closely_has_its_turn_in_the_order_of_all(self) -> None:
        """Else it would be the last of each pass, and of one that is cut it would never be."""
        put(Kind.BY_OBJECT, 1, obj=1)
        for shard in (1, 2, 3):
            write(message(Kind.BY_OBJECT, shard, obj=10 + shard))

        def act(*, object_identifier: int, **_: Any) -> None:
            if object_identifier == 1:
                raise LookupError

        with listening(Kind.BY_OBJECT, act=act) as seen:
            sweep(budget=0)
            sweep(budget=60)
            assert seen.objects == [1, 12, 13, 11]
            write(*(message(Kind.BY_OBJECT, shard, obj=10 + shard) for shard in (1, 2)))
            seen.calls.clear()
            sweep(budget=60)
        assert seen.objects == [11, 12]

    def test_a_drain_of_one_round_leaves_what_came_meanwhile(self) -> None:
        put(Kind.ORDERED, 1, obj=1)

        def act(*, object_identifier: int, **_: Any) -> None:
            if object_identifier < 3:
                put(Kind.ORDERED, 1, obj=object_identifier + 1)

        with listening(Kind.ORDERED, act=act) as seen, assume_silo(SiloMode.CELL, cell="us"):
            Drainer(CellOutbox, US).sweep(rounds=1)
            assert seen.objects == [1]
            Drainer(CellOutbox, US).sweep()
        assert seen.objects == [1, 2, 3]

    def test_a_direct_drain_ends_in_time(
        self, monkeypatch: pytest.MonkeyPatch, way: AbstractContextManager[object]
    ) -> None:
        tune(budget_s=0.05)
        made = message(Kind.ORDERED, 1, obj=1)
        write(made, *(message(Kind.ORDERED, 1, obj=n) for n in (2, 3)))
        begun = monotonic()

        def act(**_: Any) -> None:
            while monotonic() < begun + 0.1:
                pass  # longer than the drain's time, from before it began

        with listening(Kind.ORDERED, act=act) as seen, way:
            begun = monotonic()
            with assume_silo(SiloMode.CELL, cell="us"):
                direct.drain_shard(made, flush_all=True, leases=None, limits=tuned.limits)
        assert seen.objects == [1]
        assert (len(ids()), leases()) == (2, [])


class TestGoingAhead:
    @pytest.fixture(autouse=True)
    def _ahead(self, committed: None, slow_looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
        learn()
        tune(time_slice_s=0.0)

    @pytest.mark.parametrize("looks_behind", [False, True])
    @pytest.mark.parametrize("most", [1, 256])
    def test_it_goes_on_behind_the_shards_that_had_their_turn(
        self, *, most: int, looks_behind: bool
    ) -> None:
        write(*(message(Kind.ORDERED, 1, obj=n) for n in (11, 12)))
        put(Kind.ORDERED, 2, obj=21)
        put(Kind.ORDERED, 3, obj=31)
        with listening(Kind.ORDERED) as seen:
            for _ in range(4):
                if looks_behind:
                    known().look_again()
                sweep(budget=0, most=most)
        assert seen.objects == [11, 21, 31, 12]
        assert known().leads

    def test_so_do_looks_behind(self) -> None:
        write(*(message(Kind.ORDERED, 1, obj=n) for n in (11, 12)))
        known().settled = known().passed = put(Kind.ORDERED, 2, obj=21)
        with listening(Kind.ORDERED) as seen:
            for _ in range(3):
                put(Kind.ORDERED, 3, obj=99)
                known().look_again()
                sweep(budget=0)
                sweep(budget=0)  # ahead, when it is not yet time to look behind again
        assert [each for each in seen.objects if each != 99] == [11, 21, 12]


def test_cells_have_their_turns_one_after_another() -> None:
    known = RoundRobin()
    cells = ["de", "eu", "us"]
    assert known.cells(cells) == cells
    known.ended_in("de")
    assert known.cells(cells) == ["eu", "us", "de"]
    known.ended_in("us")
    assert known.cells(cells) == cells
    known.ended_in("gone")
    assert known.cells(cells) == cells
