"""The breaker alone, and at the client, with a clock that stands until it is moved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from hybridcloud.registry import cell_is_broken
from hybridcloud.rpc import RpcRemoteError, RpcUnavailableError
from hybridcloud.rpc.breaker import Breaker, Breakers, breakers, fill_slot
from hybridcloud.rpc.client import Outgoing, Reply, transport
from silos.mode import SiloMode, assume_silo
from tests.hybridcloud.rpc.orchard import orchard, tree

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock, failures=3, rest_s=10)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.record_unavailable()


def test_it_opens_after_failures_in_a_row(breaker: Breaker) -> None:
    fail(breaker, 2)
    assert breaker.admit()
    assert not breaker.is_open()
    fail(breaker, 1)
    assert not breaker.admit()
    assert breaker.is_open()


def test_an_answer_in_between_begins_the_count_again(breaker: Breaker) -> None:
    fail(breaker, 2)
    breaker.record_answer()
    fail(breaker, 2)
    assert breaker.admit()


def test_after_its_rest_it_lets_one_call_try(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 9.9
    assert not breaker.admit()
    clock.now += 0.1
    assert not breaker.is_open()
    assert breaker.admit()
    assert not breaker.admit()


def test_asking_whether_it_is_open_takes_nobodys_try(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    assert not breaker.is_open()
    assert not breaker.is_open()
    assert breaker.admit()


def test_a_try_that_is_answered_closes_it(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    assert breaker.admit()
    breaker.record_answer()
    assert breaker.admit()
    assert breaker.admit()


def test_a_try_that_fails_opens_it_for_another_rest(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    assert breaker.admit()
    fail(breaker, 1)
    clock.now += 9.9
    assert not breaker.admit()
    clock.now += 0.1
    assert breaker.admit()


def test_a_try_that_never_reports_does_not_close_the_way_for_ever(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, 3)
    clock.now += 10
    assert breaker.admit()
    clock.now += 10
    assert breaker.admit()


def test_of_many_threads_one_gets_the_try(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 10
    with ThreadPoolExecutor(8) as pool:
        admitted = [*pool.map(lambda _: breaker.admit(), range(64))]
    assert sum(admitted) == 1


class Wire:
    """A transport that answers what it is told, and counts."""

    round_trips_local_calls = False

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.away: set[str] = set()
        self.status = 200

    def send(self, request: Outgoing) -> Reply:
        self.sent.append(str(request.target))
        if str(request.target) in self.away:
            raise request.fail(RpcUnavailableError, "Away.")
        return Reply(self.status, b'{"value":"here"}')


@pytest.fixture
def wire(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(breakers, "_make", lambda: Breaker(clock, failures=3, rest_s=10))
    made = Wire()
    with transport.override(made):
        yield made


def test_a_dead_cell_is_not_called_while_its_breaker_is_open(wire: Wire, clock: Clock) -> None:
    wire.away = {"cell 'eu'"}
    for _ in range(5):
        with pytest.raises(RpcUnavailableError) as caught:
            tree.where(cell_name="eu")
    assert str(caught.value).startswith("Breaker open")
    assert caught.value.retryable
    assert (caught.value.service, caught.value.method) == ("tree", "where")
    assert caught.value.silo == "cell 'eu'"
    assert wire.sent == ["cell 'eu'"] * 3
    assert tree.where(cell_name="us") == "here"
    assert orchard.where() == "here"
    wire.away, clock.now = set(), clock.now + 10
    assert tree.where(cell_name="eu") == "here"
    assert tree.where(cell_name="eu") == "here"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_silo_that_answers_as_if_it_were_away_counts_as_away(wire: Wire, status: int) -> None:
    wire.status = status
    for _ in range(5):
        with pytest.raises(RpcUnavailableError):
            tree.where(cell_name="eu")
    assert len(wire.sent) == 3


def test_an_error_of_a_method_is_an_answer(wire: Wire) -> None:
    wire.status = 500
    for _ in range(9):
        with pytest.raises(RpcRemoteError):
            tree.where(cell_name="eu")
    assert len(wire.sent) == 9


def test_the_engine_is_told_which_cell_is_broken(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(cell_is_broken, "_function", None)
    fill_slot()
    fill_slot()
    wire.away = {"cell 'eu'", "the control silo"}
    for _ in range(3):
        with pytest.raises(RpcUnavailableError):
            tree.where(cell_name="eu")
        with assume_silo(SiloMode.CELL, cell="us"), pytest.raises(RpcUnavailableError):
            orchard.where()
    assert [cell_is_broken(name) for name in ("us", "eu", "control")] == [False, True, False]
    clock.now += 10
    assert not cell_is_broken("eu")


def test_two_threads_get_the_same_breaker() -> None:
    kept = Breakers()
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda _: id(kept.of("CELL", "us")), range(64))}
    assert len(found) == 1
    assert kept.of("CELL", "us") is not kept.of("CELL", "eu")
