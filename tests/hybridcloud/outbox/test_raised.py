"""Whatever leaves a handler is its message's failure, and nothing else's.

The kinds of exceptions: texts that cannot be formatted, encoded or stored; exceptions that are no
`Exception`; notes, causes and groups of such. The kinds of calls: a drainer's, a listening
drainer's, a sync flush, an atomic and an at-most-once handler, calls of RPC alone and in a batch.
What is the process's own stop; delays that make no sense; transactions that handlers leave open.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import WorkerShutdown, WorkerTerminate
from django.core.exceptions import ValidationError

from hybridcloud import hooks
from hybridcloud.outbox import RetryLater
from hybridcloud.outbox.deliver.listener import ListeningDrainer, tables_of
from hybridcloud.outbox.store.state import CellParked
from hybridcloud.raised import NO_TEXT, DrainerStopped, described, is_own_stop, summary
from silos.mode import CurrentSilo, SiloMode

from .engine import (
    US,
    Kind,
    Worker,
    drain_us,
    failures,
    ids,
    leases,
    listening,
    message,
    parked,
    put,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("committed")


class _NoTextError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class _ExitsInTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _NoStringError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - the case


class _Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise LookupError("no name")


class _NamelessError(Exception, metaclass=_Nameless):
    pass


class _TimeoutOfGevent(BaseException):
    pass


def _noted(note: Any) -> Exception:
    error = LookupError("with a note")
    error.__notes__ = note
    return error


def _caused(cause: BaseException) -> Exception:
    error = LookupError("with a cause")
    error.__cause__ = cause
    return error


def _chain(length: int) -> Exception:
    error = LookupError("the first")
    for number in range(length):
        after = LookupError(str(number))
        after.__context__ = error
        error = after
    return error


POISONS: dict[str, Callable[[], BaseException]] = {
    "a ValidationError whose text cannot be formatted": lambda: ValidationError(
        "%(missing)s", params={"other": 1}
    ),
    "a text that raises": _NoTextError,
    "a text that exits": _ExitsInTextError,
    "a text that is no string": _NoStringError,
    "a class whose name raises": _NamelessError,
    "SystemExit": lambda: SystemExit(1),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "gevent.Timeout": _TimeoutOfGevent,
    "a lone surrogate": lambda: LookupError("\udc80"),
    "a NUL": lambda: LookupError("a\x00b"),
    "a long text": lambda: LookupError("x" * 3_000_000),
    "a lone surrogate in a note": lambda: _noted(["\udc80\x00"]),
    "notes that are none": lambda: _noted(5),
    "a lone surrogate in a cause": lambda: _caused(LookupError("\udc80\x00")),
    "a cause whose text raises": lambda: _caused(_NoTextError()),
    "a long chain": lambda: _chain(5_000),
    "a group": lambda: BaseExceptionGroup("\udc80", [SystemExit(), _NoTextError("\x00")]),
}


NAMES = list(POISONS)
GOOD = 1000


def _raise_in_turn(*, object_identifier: int, **_: Any) -> None:
    """Raise the exception that the object stands for."""
    if object_identifier != GOOD:
        raise POISONS[NAMES[object_identifier]]()  # noqa: RSE102 - it makes a new one


def _put_all(kind: Kind = Kind.PLAIN) -> None:
    """Write a message for each exception, each in its shard, and a good one behind them."""
    for number in range(len(NAMES)):
        put(kind, shard=number, obj=number)
    put(kind, shard=GOOD, obj=GOOD)


ALL = [*range(len(NAMES)), GOOD]


def _aside[T](work: Callable[[], T]) -> T:
    """Run work on a thread that is not the main one, where Ctrl-C is no stop."""
    with Worker(work) as worker:
        pass
    result: T = worker.result
    return result


def _is_stored(text: str) -> bool:
    return bool(text) and "\x00" not in text and text.encode() != b"" and len(text) <= 20_000


@pytest.mark.rule(4)
@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.BY_CATEGORY, Kind.BY_OBJECT, Kind.ATOMIC])
def test_a_drainer_records_it_and_handles_what_is_behind(kind: Kind) -> None:
    _put_all(kind)
    with listening(kind, act=_raise_in_turn) as seen:
        _aside(drain_us)
    assert [each.object_identifier for each in failures()] == ALL[:-1]
    for failure in failures():
        name = NAMES[failure.object_identifier]
        assert (failure.attempts, failure.crashed) == (1, False), name
        assert _is_stored(failure.last_error), name
        assert _is_stored(failure.last_traceback), name
    assert seen.objects == ALL
    assert leases() == []


@pytest.mark.rule(4)
def test_an_at_most_once_handler_leaves_a_dead_letter() -> None:
    _put_all(Kind.ONCE)
    with listening(Kind.ONCE, act=_raise_in_turn) as seen:
        _aside(drain_us)
    dead = list(CellParked.objects.using(US).order_by("id"))
    assert ([each.object_identifier for each in dead], seen.objects) == (ALL[:-1], ALL)
    for each in dead:
        assert each.reason == "dead"
        assert _is_stored(each.error or "")
        assert "not finished" not in (each.error or "")


@pytest.mark.rule(4)
def test_a_sync_flush_saves_the_change_all_the_same() -> None:
    rows = [message(shard=each, obj=each) for each in ALL]
    with listening(Kind.PLAIN, act=_raise_in_turn) as seen:
        _aside(lambda: write(*rows, flush=True))
    assert [each.object_identifier for each in failures()] == ALL[:-1]
    assert sorted(seen.objects) == ALL


def test_a_listening_drainer_goes_on() -> None:
    _put_all()
    drainer = ListeningDrainer(tables_of([CurrentSilo(SiloMode.CELL, "us")]))

    def act(*, object_identifier: int, **more: Any) -> None:
        if object_identifier == GOOD:
            drainer.stop()
        _raise_in_turn(object_identifier=object_identifier, **more)

    with listening(Kind.PLAIN, act=act) as seen:
        _aside(drainer.run)
    assert [each.object_identifier for each in failures()] == ALL[:-1]
    assert seen.objects == ALL


def test_a_listener_of_failures_that_formats_it_stops_nothing() -> None:
    _put_all()

    class Formats(hooks.Hooks):
        def failed(self, fact: hooks.Failed) -> None:
            raise POISONS[NAMES[fact.object_identifier]]()  # noqa: RSE102 - it makes a new one

    with hooks.installed(Formats()), listening(Kind.PLAIN, act=_raise_in_turn) as seen:
        _aside(drain_us)
    assert seen.objects == ALL


def _act(error: Callable[[], BaseException]) -> Callable[..., None]:
    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 666:
            raise error()

    return act


def test_what_no_database_text_can_hold_is_recorded_in_fixed_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as any text beyond the database's own encoding."""
    monkeypatch.setattr("hybridcloud.outbox.drain.failure.described", lambda _: "\x00")
    monkeypatch.setattr("hybridcloud.outbox.drain.settle.described", lambda _: "\x00")
    put(shard=1, obj=666)
    put(Kind.ONCE, shard=1, obj=666)
    with listening(Kind.PLAIN, Kind.ONCE, act=_act(LookupError)):
        drain_us()
    assert failures()[0].last_traceback == NO_TEXT
    assert [each.error for each in CellParked.objects.using(US).all()] == [NO_TEXT]


@pytest.mark.parametrize("name", POISONS)
def test_the_text_of_an_exception_is_total_bounded_and_stored(name: str) -> None:
    error = POISONS[name]()
    for text, most in ((summary(error), 2_000), (described(error), 20_000)):
        assert 0 < len(text) <= most
        assert "\x00" not in text
        assert text.encode().decode() == text


OWN_STOPS = {
    "Ctrl-C": KeyboardInterrupt,
    "a Celery worker's shutdown": WorkerShutdown,
    "a Celery worker's end": WorkerTerminate,
    "a drainer's second signal": DrainerStopped,
}


@pytest.mark.rule(8)
@pytest.mark.parametrize("name", OWN_STOPS)
@pytest.mark.parametrize("kind", [Kind.ORDERED, Kind.ATOMIC])
def test_the_processs_own_stop_costs_no_attempt_and_goes_on(name: str, kind: Kind) -> None:
    put(kind, shard=1, obj=1)
    put(kind, shard=1, obj=666)
    put(kind, shard=2, obj=2)
    with (
        listening(kind, act=_act(OWN_STOPS[name])) as seen,
        pytest.raises(OWN_STOPS[name]),
    ):
        drain_us()
    assert (failures(), leases(), len(ids())) == ([], [], 2)
    with listening(kind) as seen:
        drain_us()
    assert seen.objects == [666, 2]


def test_ctrl_c_is_a_stop_only_where_python_itself_makes_an_exception_of_it() -> None:
    assert is_own_stop(KeyboardInterrupt())
    assert not _aside(lambda: is_own_stop(KeyboardInterrupt()))
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        assert not is_own_stop(KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, before)
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    "delay",
    [0, -1, 1e-9, float("nan"), float("-inf"), timedelta(0), timedelta(-1), timedelta.min],
)
def test_a_delay_that_is_too_short_is_a_tenth_of_a_second(delay: Any) -> None:
    assert RetryLater(delay).delay == timedelta(seconds=0.1)


@pytest.mark.parametrize("delay", [1e12, float("inf"), timedelta.max])
def test_a_delay_that_is_too_long_is_thirty_days(delay: Any) -> None:
    put(obj=1)
    with listening(Kind.PLAIN, act=_raise(RetryLater(delay))):
        drain_us()
    (row,) = CellParked.objects.using(US).all()
    assert row.scheduled_for - row.scheduled_from == timedelta(days=30)


@pytest.mark.parametrize("delay", [0, -5, timedelta(0)])
def test_a_handler_that_always_asks_for_later_is_not_called_in_a_loop(delay: Any) -> None:
    put(obj=1)
    with listening(Kind.PLAIN, act=_raise(RetryLater(delay))) as seen:
        drain_us()
    assert len(seen.calls) == 1


@pytest.mark.parametrize("reason", ["\udc80\x00", _NoTextError(), 7])
def test_the_reason_for_later_is_stored_whatever_it_is(reason: Any) -> None:
    error = RetryLater(5)
    error.reason = reason
    put(obj=1)
    with listening(Kind.PLAIN, act=_raise(error)):
        drain_us()
    assert len(parked("delayed")) == 1


def _raise(error: BaseException) -> Callable[..., None]:
    def act(**_: Any) -> None:
        raise error

    return act
