"""Failures are heard: which line, at what level, how often, and what is not in it.

The kinds: a first failure, later ones, a doubling, a dead letter, an unknown category, a lost worker,
a recovery, many shards of one cause.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud import logs
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver import tasks
from hybridcloud.outbox.store.key import ShardKey
from silos import SiloMode, assume_silo

from .engine import (
    Child,
    Kind,
    Lane,
    drain_us,
    failures,
    ids,
    leases,
    listening,
    lose_drainer,
    make_due,
    pass_time,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("committed")
SECRET = "4111111111111111"


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[int], list[str]]]:
    """Give the lines of the engine's logger at a level, and those since."""
    logs.forget_limits()
    caplog.set_level(logging.INFO, logger="hybridcloud")

    def lines(level: int) -> list[str]:
        found = [each for each in caplog.records if each.name == "hybridcloud.outbox"]
        return [each.getMessage() for each in found if each.levelno == level]

    yield lines
    assert SECRET not in caplog.text, "no line has a payload"


def _fail(**_: Any) -> None:
    raise LookupError("no such row\nand a second line")


def test_a_first_failure_is_a_warning_with_all_that_is_needed(
    heard: Callable[[int], list[str]],
) -> None:
    pk = put(Kind.ORDERED, shard=5, obj=7, payload={"card": SECRET})
    with listening(Kind.ORDERED, act=_fail):
        drain_us()
    (line,) = heard(logging.WARNING)
    for part in (f"message {pk}", "ORDERED", "object 7", "5", "attempt 1", "next try in about 1 s"):
        assert part in line
    assert line.endswith("LookupError: no such row")
    assert heard(logging.ERROR) == []


def test_later_ones_are_said_at_each_doubling(heard: Callable[[int], list[str]]) -> None:
    put(Kind.ORDERED, obj=7, payload={"card": SECRET})
    with listening(Kind.ORDERED, act=_fail):
        for _ in range(9):
            logs.forget_limits()
            make_due()
            drain_us()
    said = [line.partition("attempt ")[2].partition(",")[0] for line in heard(logging.WARNING)]
    assert said == ["1", "2", "4", "8"]


def test_many_shards_of_one_cause_are_one_line_a_minute(
    heard: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    for shard in range(50):
        put(Kind.ORDERED, shard=shard, obj=1)
    with listening(Kind.ORDERED, act=_fail):
        drain_us()
        assert len(heard(logging.WARNING)) == 1
        now[0] += logs.EVERY
        put(Kind.ORDERED, shard=60, obj=1)
        drain_us()
    first, second = heard(logging.WARNING)
    assert "more since" not in first
    assert "(49 more since the last line)" in second


def test_another_cause_is_another_line(heard: Callable[[int], list[str]]) -> None:
    put(Kind.ORDERED, shard=1, obj=1)
    put(Kind.ORDERED, shard=2, obj=2)

    def act(*, object_identifier: int, **_: Any) -> None:
        raise (LookupError if object_identifier == 1 else ValueError)

    with listening(Kind.ORDERED, act=act):
        drain_us()
    assert len(heard(logging.WARNING)) == 2


@pytest.mark.parametrize("kind", [Kind.LIMITED, Kind.ONCE])
def test_a_dead_letter_is_an_error_with_its_traceback(
    kind: Kind, heard: Callable[[int], list[str]]
) -> None:
    put(kind, obj=7, payload={"card": SECRET})
    with listening(kind, act=_fail):
        for _ in range(2):
            make_due()
            drain_us()
    (line,) = heard(logging.ERROR)
    assert line.startswith("Dead-lettered message ")
    assert "Traceback" in line
    assert "LookupError: no such row" in line


def test_what_nobody_receives_is_an_error(heard: Callable[[int], list[str]]) -> None:
    put(Kind.SILENT, obj=7, payload={"card": SECRET})
    drain_us()
    (line,) = heard(logging.ERROR)
    assert "no receiver for SILENT" in line


def test_a_lost_worker_is_an_error(heard: Callable[[int], list[str]]) -> None:
    put(Kind.ORDERED, obj=7)
    lose_drainer(Lane.ORDERED, handling=ids()[0])
    drain_us()
    (line,) = heard(logging.ERROR)
    assert line.startswith("WorkerLostError: Worker lost while it handled")


@pytest.mark.parametrize("kind", [Kind.ORDERED, Kind.BY_OBJECT])
def test_a_recovery_is_said(kind: Kind, heard: Callable[[int], list[str]]) -> None:
    put(kind, obj=7)
    with listening(kind, act=_fail):
        drain_us()
    make_due()
    with listening(kind):
        drain_us()
    (line,) = heard(logging.INFO)
    assert line.startswith("Recovered after 1 failed attempts")
    assert failures() == []


def test_ordinary_operation_says_nothing(heard: Callable[[int], list[str]]) -> None:
    for obj in range(5):
        put(obj=obj)
    with listening(Kind.PLAIN):
        drain_us()
    assert [heard(level) for level in (logging.INFO, logging.WARNING, logging.ERROR)] == [[]] * 3


def test_a_task_returns_what_moved_and_what_failed() -> None:
    put(Kind.ORDERED, shard=1, obj=1)
    put(Kind.ORDERED, shard=2, obj=2)

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 1:
            raise LookupError

    with listening(Kind.ORDERED, act=act):
        found = tasks.drain_outbox_shards(cell="us")
    assert found["us"]["hybridcloud.CellOutbox"] == {"moved": 2, "failed": 1}


class TestLostDrainers:
    """The reference's own steps see the shard of a lost drainer."""

    @pytest.fixture(autouse=True)
    def _lost(self) -> None:
        put(Kind.ORDERED, obj=7)
        with Child("drain", stop_at="handler", kinds=["ORDERED"]) as child:
            child.expect("stopped")
            child.kill()
        pass_time(600)

    def test_it_is_found_claimed_and_drained(self) -> None:
        with assume_silo(SiloMode.CELL, cell="us"), listening(Kind.ORDERED) as seen:
            (key,) = CellOutbox.find_scheduled_shards()
            assert key == ShardKey(int(Lane.ORDERED), 1).columns()
            first = CellOutbox.prepare_next_from_shard(key)
            assert first is not None
            first.drain_shard()
        assert (seen.objects, leases(), ids()) == ([7], [], [])

    def test_those_that_are_switched_off_hide_no_other(self) -> None:
        from hybridcloud.outbox.store.switches import DISABLED_SHARDS
        from hybridcloud.testutils import override_options

        for shard in range(2, 6):
            put(Kind.ORDERED, shard=shard, obj=1)
            lose_drainer(Lane.ORDERED, shard, until=f"2020-01-0{shard}")
        off = [{"scope": "ORDERED", "identifier": shard} for shard in range(2, 6)]
        with (
            assume_silo(SiloMode.CELL, cell="us"),
            override_options({DISABLED_SHARDS: off}),
        ):
            assert [key[1] for key in CellOutbox.find_scheduled_shards(limit=2)] == [1]

    def test_one_that_is_switched_off_is_not(self) -> None:
        from hybridcloud.outbox.store.switches import DISABLED_SHARDS
        from hybridcloud.testutils import override_options

        off = {DISABLED_SHARDS: [{"scope": "ORDERED"}]}
        with assume_silo(SiloMode.CELL, cell="us"), override_options(off):
            assert CellOutbox.find_scheduled_shards() == []


@pytest.mark.rule(8)
def test_a_direct_drain_gives_its_lease_back_after_a_database_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.db import OperationalError

    from hybridcloud.errors import OutboxDatabaseError
    from hybridcloud.outbox.store.session import Engine

    put(Kind.ORDERED, obj=7)
    with assume_silo(SiloMode.CELL, cell="us"):
        first = CellOutbox.prepare_next_from_shard(ShardKey(int(Lane.ORDERED), 1).columns())
        assert first is not None
        assert len(leases()) == 1
        query = Engine.query

        def refuse(self: Engine, name: str, *arguments: Any, **more: Any) -> Any:
            if name == "newest":
                raise OperationalError("canceling statement due to statement timeout")
            return query(self, name, *arguments, **more)

        monkeypatch.setattr(Engine, "query", refuse)
        with pytest.raises(OutboxDatabaseError):
            first.drain_shard()
    assert leases() == []
