"""A drainer without Celery: woken by NOTIFY, stopped in good order."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver.listener import POLL, Listener
from hybridcloud.outbox.deliver.notify import channel_of, notifier

from .engine import US, WAIT, Child, Kind, drain_us, ids, leases, listening, message, write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture
def by_notify() -> Iterator[None]:
    """Kick by NOTIFY, and leave no session of it behind."""
    conf = {**django_settings.HYBRIDCLOUD, "FLUSH": "kick", "KICK": "notify"}
    with override_settings(HYBRIDCLOUD=conf):
        yield
        # The last kick of a burst waits on a timer.
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(WAIT)
        notifier().close()


@contextmanager
def listened() -> Iterator[psycopg.Connection[Any]]:
    """Give a session that listens for the us cell's outbox table."""
    conf = connections[US].settings_dict
    with psycopg.connect(
        host=conf["HOST"] or None,
        port=conf["PORT"] or None,
        user=conf["USER"] or None,
        password=conf["PASSWORD"] or None,
        dbname=conf["NAME"],
        autocommit=True,
    ) as connection:
        connection.execute(f'LISTEN "{channel_of(CellOutbox)}"')
        yield connection


def sessions(query: str) -> list[int]:
    """Return the backends whose last statement begins so."""
    with connections[US].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE %s AND datname = current_database()"
            " AND pid <> pg_backend_pid()",
            [f"{query}%"],
        )
        return [pid for (pid,) in cursor.fetchall()]


def are_gone(query: str) -> bool:
    """Wait until no such backend is left: it ends a moment after its client."""
    deadline = monotonic() + WAIT
    while sessions(query) and monotonic() < deadline:
        threading.Event().wait(0.02)
    return not sessions(query)


def test_a_commit_reaches_its_handler_without_polling(by_notify: None) -> None:
    taken = []
    with Child("listen") as child:
        child.expect("ready")
        write(message(obj=1), flush=True)
        child.expect("handling 1")
        for number in range(2, 9):
            threading.Event().wait(0.1)
            began = monotonic()
            write(message(obj=number), flush=True)
            child.expect(f"handling {number}")
            taken.append(monotonic() - began)
    assert sorted(taken)[len(taken) // 2] < 0.5 < POLL


def test_a_notification_is_a_statement_of_its_own_after_the_commit(by_notify: None) -> None:
    with listened() as listener, CaptureQueriesContext(connections[US]) as queries:
        write(message(), flush=True)
        (heard,) = listener.notifies(timeout=WAIT, stop_after=1)
        assert (heard.channel, heard.payload) == (channel_of(CellOutbox), "")
        assert heard.pid != connections[US].connection.info.backend_pid
        seen = [each["sql"] for each in queries.captured_queries]
        assert seen
        assert not [sql for sql in seen if "notify" in sql.lower()]
    notifier().close()
    assert are_gone("NOTIFY")


def test_a_rolled_back_write_notifies_nobody(by_notify: None) -> None:
    from django.db import transaction

    from hybridcloud.outbox import outbox_context

    with listened() as listener:
        with suppress(ZeroDivisionError), outbox_context(transaction.atomic(using=US), flush=True):
            message().save(using=US)
            raise ZeroDivisionError
        notifier().close()
        assert list(listener.notifies(timeout=0.1)) == []


def test_thousands_of_kicks_are_tens_of_notifications(by_notify: None) -> None:
    from hybridcloud.outbox.deliver.kick import EVERY, kick

    asked, began = 0, monotonic()
    with listened() as listener:
        while asked < 2000 or monotonic() - began < 0.5:
            kick(CellOutbox, US)
            asked += 1
        took = monotonic() - began
        notifier().close()
        heard = list(listener.notifies(timeout=0.2))
    assert 1 <= len(heard) <= took / EVERY + 2


def test_a_lost_session_is_opened_again() -> None:
    heard = threading.Semaphore(0)
    listener = Listener(US, [channel_of(CellOutbox)], heard.release)
    listener.start()
    try:
        assert heard.acquire(timeout=WAIT)
        (lost,) = sessions("LISTEN")
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [lost])
        assert heard.acquire(timeout=WAIT), "the second session was not opened"
        with connections[US].cursor() as cursor:
            cursor.execute(f'NOTIFY "{channel_of(CellOutbox)}"')
        assert heard.acquire(timeout=WAIT), "the second session does not listen"
        assert sessions("LISTEN") != [lost]
    finally:
        listener.end()
        listener.join(WAIT)
    assert not listener.is_alive()
    assert are_gone("LISTEN")


def test_the_first_signal_finishes_what_is_claimed_and_gives_it_back() -> None:
    write(message(shard=1, obj=1))
    with Child("listen", stop_at="handler") as child:
        child.expect("stopped")
        child.process.send_signal(signal.SIGTERM)
        assert len(leases()) == 1
        child.go()
        child.expect("done")
        assert child.process.wait(WAIT) == 0
    assert (ids(), leases()) == ([], [])


def test_the_second_signal_ends_it_at_once() -> None:
    (kept,) = write(message(shard=1, obj=1))
    with Child("listen", stop_at="handler") as child:
        child.expect("stopped")
        child.process.send_signal(signal.SIGTERM)
        child.expect("asked")
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(WAIT) == 128 + signal.SIGTERM
    assert ids() == [kept]


def test_delayed_messages_are_handled_when_they_are_due_and_not_at_the_next_poll() -> None:
    delays = {1: 3.0, 2: 3.7, 3: 4.4}
    with Child("listen") as child:
        child.expect("ready")
        for _ in range(3):  # polls would be late in every round, a busy machine is so now and then
            late = []
            began = monotonic()
            write(*(message(obj=obj, delay=timedelta(seconds=s)) for obj, s in delays.items()))
            for obj, delay in delays.items():
                child.expect(f"handling {obj}")
                late.append(monotonic() - began - delay)
            assert min(late) >= 0
            if max(late) < 0.65:
                break
    # Due times are 0.7 s apart: polls, 2 s apart, would be late for one of them.
    assert max(late) < 0.65


def test_an_unknown_way_to_kick_is_refused() -> None:
    conf = {**django_settings.HYBRIDCLOUD, "KICK": "notifi"}
    with (
        override_settings(HYBRIDCLOUD=conf),
        pytest.raises(ConfigurationError, match=r"Unknown value 'notifi' of .*'notify'"),
    ):
        settings()


def test_a_drainer_that_is_to_stop_begins_no_further_shard_and_gives_them_back() -> None:
    write(*(message(shard=shard) for shard in (1, 2, 3)))
    with listening(Kind.PLAIN) as seen:
        assert drain_us(stopped=lambda: bool(seen.calls)) == 1
        assert len(seen.calls) == 1
        assert leases() == []
        drain_us()
    assert len(seen.calls) == 3
    assert ids() == []
