"""After a commit its messages are told of and flushed once, and nobody else's hooks suffer."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from hybridcloud import hooks
from hybridcloud.hooks import Hooks
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.deliver import flush as flushing
from hybridcloud.outbox.store.key import ShardKey
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US, Kind, Worker, message
from .writing import Saves, objects, rolled_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.hooks import Saved
    from hybridcloud.outbox.deliver.flush import Written

pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """Record what would be flushed instead of flushing it."""
    seen: list[Written] = []
    monkeypatch.setattr(flushing, "flush_written", lambda written, mode: seen.append(written))
    return seen


@pytest.fixture
def saves() -> Iterator[list[Saved]]:
    with hooks.installed(Saves()) as listener:
        yield listener.facts


@pytest.mark.django_db(transaction=True, databases=ALIASES)
class TestAfterCommit:
    def test_one_flush_per_commit_whatever_was_written(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        with transaction.atomic(using=US):
            message(obj=1).save()
            with outbox_context(transaction.atomic(using=US)):
                message(obj=2).save()
                message(Kind.OTHER, obj=3).save()
            CellOutbox.objects.bulk_create([message(obj=4)])
            assert (flushes, saves) == ([], [])
        (written,) = flushes
        assert (written.outbox, written.alias) == (CellOutbox, US)
        assert [row.object_identifier for row in written.rows] == [1, 2, 3, 4]
        assert [row.id for row in written.rows] == [
            each.pk for each in CellOutbox.objects.order_by("id")
        ]
        assert written.rows[0].shard == ShardKey(9000, 1)
        (fact,) = saves
        assert (fact.outbox, fact.counts) == ("hybridcloud.CellOutbox", {9000: 3, 9001: 1})

    def test_a_save_outside_of_any_transaction_opens_its_own(self, flushes: list[Written]) -> None:
        message(obj=1).save()
        assert [row.object_identifier for written in flushes for row in written.rows] == [1]

    def test_a_rollback_leaves_no_message_no_flush_and_no_metric(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        with rolled_back(transaction.atomic(using=US)):
            message(obj=1).save()
        with rolled_back(outbox_context(transaction.atomic(using=US))):
            message(obj=1).save()
        assert (objects(), flushes, saves) == ([], [], [])

    def test_a_rolled_back_savepoint_is_neither_flushed_nor_counted(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        with transaction.atomic(using=US):
            with rolled_back(transaction.atomic(using=US)):
                message(obj=1).save()
            message(obj=2).save()
            with rolled_back(transaction.atomic(using=US)):
                message(obj=3).save()
        assert [row.object_identifier for row in flushes[0].rows] == [2]
        assert [fact.counts for fact in saves] == [{9000: 1}]

    def test_only_rolled_back_savepoints_flush_nothing(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        with transaction.atomic(using=US), rolled_back(transaction.atomic(using=US)):
            message(obj=1).save()
        assert (flushes, saves) == ([], [])

    def test_the_decision_to_flush_is_taken_when_the_message_is_saved(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with outbox_context(flush=False):
                message(obj=2).save()
        assert [row.object_identifier for row in flushes[0].rows] == [1]
        assert saves[0].counts == {9000: 2}

    def test_nothing_to_flush_is_no_flush(self, flushes: list[Written]) -> None:
        with outbox_context(transaction.atomic(using=US), flush=False):
            message(obj=1).save()
        assert flushes == []
        assert objects() == [1]

    def test_a_delayed_message_is_counted_and_not_flushed(
        self, flushes: list[Written], saves: list[Saved]
    ) -> None:
        message(delay=timedelta(hours=1)).save()
        assert flushes == []
        assert saves[0].counts == {9000: 1}

    def test_the_flush_comes_after_hooks_that_were_there_before(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        monkeypatch.setattr(flushing, "flush_written", lambda *_: order.append("flush"))
        with transaction.atomic(using=US):
            message(obj=1).save()
            transaction.on_commit(lambda: order.append("hook"), using=US)
            message(obj=2).save()
        assert order == ["hook", "flush"]

    def test_a_flush_that_breaks_stops_neither_the_writer_nor_other_hooks(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Ears(Hooks):
            heard: list[Any] = []

            def captured(self, fact: Any) -> None:
                self.heard.append(fact.error)

        def broken(*_: Any) -> None:
            raise KeyError("broken engine")

        monkeypatch.setattr(flushing, "flush_written", broken)
        after: list[str] = []
        with hooks.installed(Ears()) as ears, transaction.atomic(using=US):
            message(obj=1).save()
            transaction.on_commit(lambda: after.append("ran"), using=US)
        assert after == ["ran"]
        assert [type(error) for error in ears.heard] == [KeyError]
        assert "the tick takes over" in caplog.text

    def test_a_listener_that_breaks_does_not_stop_the_flush(self, flushes: list[Written]) -> None:
        class Broken(Hooks):
            def saved(self, fact: Saved) -> None:
                raise ValueError("broken listener")

        with hooks.installed(Broken()):
            message(obj=1).save()
        assert len(flushes) == 1

    def test_threads_have_transactions_and_buffers_of_their_own(
        self, flushes: list[Written]
    ) -> None:
        both = threading.Barrier(2, timeout=20)

        def write(number: int) -> None:
            with outbox_context(transaction.atomic(using=US), flush=bool(number)):
                message(obj=number).save()
                both.wait()
                message(obj=number + 10).save()

        with Worker(lambda: write(0)) as first, Worker(lambda: write(1)) as second:
            first.finish()
            second.finish()
        assert sorted(objects()) == [0, 1, 10, 11]
        assert [[row.object_identifier for row in each.rows] for each in flushes] == [[1, 11]]

    def test_a_copied_context_in_another_thread_writes_in_its_own_transaction(
        self, flushes: list[Written]
    ) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with Worker(lambda: message(obj=2).save()) as worker:
                worker.finish()
            assert [row.object_identifier for row in flushes[0].rows] == [2]
        assert sorted(objects()) == [1, 2]

    @pytest.mark.parametrize(("mode", "handed_on"), [("kick", ["kick"]), ("cron", [])])
    def test_the_mode_is_handed_on_and_in_cron_mode_messages_wait_for_the_tick(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any, mode: str, handed_on: list[str]
    ) -> None:
        modes: list[str] = []
        monkeypatch.setattr(flushing, "flush_written", lambda written, mode: modes.append(mode))
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": mode}
        message().save()
        assert modes == handed_on
        assert objects() == [1]


class TestInTestCase:
    def test_captured_commit_hooks_flush_what_was_written_meanwhile(
        self, flushes: list[Written], django_capture_on_commit_callbacks: Any
    ) -> None:
        message(obj=1).save()
        with django_capture_on_commit_callbacks(using=US, execute=True):
            message(obj=2).save()
            message(obj=3).save()
        assert [[row.object_identifier for row in each.rows] for each in flushes] == [[2, 3]]
        with django_capture_on_commit_callbacks(using=US, execute=True):
            message(obj=4).save()
        assert [row.object_identifier for row in flushes[1].rows] == [4]
