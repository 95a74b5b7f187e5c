"""Values are kept for seconds and outlive the database; without it a dead one would lift all switches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from hybridcloud import options
from hybridcloud.conf import settings as conf
from hybridcloud.options import cache
from hybridcloud.options.models import Option
from silos import SiloMode, assume_silo
from tests.hybridcloud.outbox.engine import WAIT, Worker

from .keys import LIMIT
from .process import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoAssertNumQueries
    from pytest_django.fixtures import SettingsWrapper

US = "cell_us"


class Clock:
    """The process's clock, as the test wants it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cache, "monotonic", made)

    return made


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache, "_snapshots", {})
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture
def without_redis(settings: SettingsWrapper) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": None}


def from_elsewhere(value: int) -> None:
    """Set the option as a process does that cannot tell this one."""
    Option.objects.using(US).update_or_create(key=LIMIT, defaults={"value": value})


@pytest.mark.django_db
@pytest.mark.usefixtures("without_redis")
def test_a_value_is_kept_for_five_seconds(
    clock: Clock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    assert options.get(LIMIT) == 5
    from_elsewhere(6)
    clock.now += 4.9
    with django_assert_num_queries(0, using=US):
        assert options.get(LIMIT) == 5
    clock.now += 0.2
    assert options.get(LIMIT) == 6


@pytest.mark.django_db
def test_with_redis_the_database_is_asked_every_five_seconds_too(clock: Clock) -> None:
    assert options.get(LIMIT) == 5
    from_elsewhere(6)
    for _ in range(4):
        clock.now += 1.1
        assert options.get(LIMIT) == 5
    clock.now += 0.7
    assert options.get(LIMIT) == 6


@pytest.mark.django_db
def test_a_redis_that_does_not_answer_is_left_alone_for_a_while(
    clock: Clock, settings: SettingsWrapper, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": "redis://127.0.0.1:1/0"}
    with caplog.at_level(logging.WARNING, "hybridcloud.redis"):
        for value in (6, 7, 8):
            from_elsewhere(value)
            assert options.get(LIMIT) == value
            clock.now += 5.1
    assert len([text for text in caplog.messages if "Redis is left out" in text]) == 1


@pytest.mark.django_db
@pytest.mark.usefixtures("without_redis")
def test_a_statement_that_fails_leaves_the_callers_transaction_usable(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    from_elsewhere(6)
    assert options.get(LIMIT) == 6
    with transaction.atomic(using=US), connections[US].cursor() as cursor:
        cursor.execute("ALTER TABLE hybridcloud_option RENAME TO hybridcloud_hidden")
        clock.now += 6
        with caplog.at_level(logging.WARNING, "hybridcloud.options"):
            assert options.get(LIMIT) == 6
        cursor.execute("SELECT 41 + 1")
        assert cursor.fetchone() == (42,)
        cursor.execute("ALTER TABLE hybridcloud_hidden RENAME TO hybridcloud_option")
    assert "cannot be read, using the last known values" in caplog.text


@pytest.mark.django_db
def test_without_a_table_an_option_has_its_default() -> None:
    with transaction.atomic(using=US), connections[US].cursor() as cursor:
        cursor.execute("ALTER TABLE hybridcloud_option RENAME TO hybridcloud_hidden")
        assert options.get(LIMIT) == 5
        cursor.execute("ALTER TABLE hybridcloud_hidden RENAME TO hybridcloud_option")


@pytest.mark.django_db
def test_a_transaction_that_failed_before_gives_what_is_known() -> None:
    from_elsewhere(6)
    assert options.get(LIMIT) == 6
    with transaction.atomic(using=US):
        transaction.set_rollback(True, using=US)
        cache.forget(US)
        assert options.get(LIMIT) == 6


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("without_redis")
def test_a_dead_database_leaves_the_last_known_values_and_is_noticed_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options.set(LIMIT, 6)
    assert options.get(LIMIT) == 6
    seen: list[Any] = []

    def look() -> None:
        # A thread has connections of its own: with this port nobody answers.
        for _ in range(3):
            clock.now += 6
            seen.append(options.get(LIMIT))

    with caplog.at_level(logging.INFO, "hybridcloud.options"):
        with monkeypatch.context() as dead:
            dead.setitem(connections.settings[US], "PORT", "1")
            dead.setitem(connections.settings[US], "HOST", "127.0.0.1")
            with Worker(look):
                pass
        clock.now += 6
        from_elsewhere(7)
        assert options.get(LIMIT) == 7
    assert seen == [6, 6, 6]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("without_redis")
def test_a_session_that_the_server_ended_is_replaced(clock: Clock) -> None:
    def look() -> list[int]:
        found = [options.get(LIMIT)]
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        terminate(pid)
        clock.now += 6
        found.append(options.get(LIMIT))
        clock.now += 6
        found.append(options.get(LIMIT))
        return found

    def terminate(pid: int) -> None:
        def end() -> None:
            with connections[US].cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

        with Worker(end):
            pass
        from_elsewhere_in_thread(8)

    def from_elsewhere_in_thread(value: int) -> None:
        with Worker(lambda: from_elsewhere(value)):
            pass

    with Worker(look) as worker:
        pass
    assert worker.result == [5, 5, 8]


@pytest.mark.django_db(transaction=True)
def test_what_is_not_committed_is_seen_by_its_own_transaction_only() -> None:
    with transaction.atomic(using=US):
        options.set(LIMIT, 6)
        assert options.get(LIMIT) == 6
        with Worker(lambda: options.get(LIMIT)) as worker:
            pass
        assert worker.result == 5
    with Worker(lambda: options.get(LIMIT)) as worker:
        pass
    assert worker.result == 6


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("without_redis")
def test_a_value_that_was_rolled_back_does_not_stay_in_the_process() -> None:
    with transaction.atomic(using=US):
        options.set(LIMIT, 6)
        assert options.get(LIMIT) == 6
        transaction.set_rollback(True, using="cell_us")
    assert options.get(LIMIT) == 5


@pytest.mark.django_db(transaction=True)
def test_a_change_that_commits_while_the_options_are_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = cache._rows

    def slow(alias: str) -> dict[str, Any]:
        found = rows(alias)
        monkeypatch.setattr(cache, "_rows", rows)
        with Worker(lambda: options.set(LIMIT, 6)):
            pass
        return found

    monkeypatch.setattr(cache, "_rows", slow)
    assert options.get(LIMIT) == 5
    assert options.get(LIMIT) == 6


@pytest.mark.django_db(transaction=True)
def test_a_running_process_follows_a_change_before_its_copy_is_old() -> None:
    assert conf().redis_url
    with Reader(LIMIT) as reader:
        assert reader.value() == 5
        options.set(LIMIT, 6)
        assert reader.value_after_change(WAIT) == 6
        # Below the 5 seconds after which it would look by itself.
        assert reader.waited < 4
