"""What is saved in a block is written in one INSERT at its end, checked and complete."""

from __future__ import annotations

import contextvars
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from hybridcloud import causation
from hybridcloud.errors import InvalidOutboxError, OutboxTransactionError
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.store.state import CellParked
from hybridcloud.outbox.write.context import flush_choice, write_messages
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US, Kind, message
from .writing import inserts, objects, rolled_back, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


class TestEntering:
    def test_the_default_is_to_flush(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            assert flush_choice(None)

    def test_an_inner_context_inherits(self) -> None:
        with outbox_context(flush=False):
            with outbox_context(transaction.atomic()):
                assert not flush_choice(None)
                with outbox_context(flush=True):
                    assert flush_choice(None)
                assert not flush_choice(None)
            with outbox_context():
                assert not flush_choice(None)
        assert flush_choice(None)

    @pytest.mark.parametrize("flush", [True, None])
    def test_flushing_without_a_transaction_is_an_error(self, flush: Any) -> None:
        with (
            pytest.raises(OutboxTransactionError, match="No transaction to flush after"),
            outbox_context(flush=flush),
        ):
            pass

    def test_flushing_inside_a_bare_atomic_is_fine(self) -> None:
        with transaction.atomic(using=US), outbox_context(flush=True) as inner:
            assert inner is None

    def test_a_bare_atomic_takes_the_current_silos_database(self) -> None:
        atomic = transaction.atomic()
        with assume_silo(SiloMode.CELL, cell="eu"), outbox_context(atomic) as inner:
            assert inner is atomic
            assert atomic.using == "cell_eu"
            message(obj=1).save()
        assert objects() == []
        with assume_silo(SiloMode.CELL, cell="eu"):
            assert objects() == [1]

    def test_a_thread_starts_outside_of_the_context(self) -> None:
        seen: list[bool] = []
        with outbox_context(flush=False):
            thread = threading.Thread(target=lambda: seen.append(flush_choice(None)))
            thread.start()
            thread.join()
        assert seen == [True]

    def test_an_async_task_keeps_the_context_that_it_started_in(self) -> None:
        async def inside() -> bool:
            return await sync_to_async(flush_choice)(None)

        with outbox_context(flush=False):
            assert not async_to_sync(inside)()
        assert async_to_sync(inside)()

    def test_an_error_leaves_the_context_as_it_was(self) -> None:
        with rolled_back(outbox_context(flush=False)):
            pass
        assert flush_choice(None)


class TestBuffering:
    def test_ten_saves_are_one_insert_at_the_end(self) -> None:
        with CaptureQueriesContext(connections[US]) as queries:
            with outbox_context(transaction.atomic(using=US)):
                made = [message(obj=number) for number in range(10)]
                for each in made:
                    each.save()
                assert not inserts(queries)
            assert len(inserts(queries)) == 1
        assert objects() == list(range(10))
        assert [each.pk for each in made] == sorted(each.pk for each in made)
        assert [each.object_identifier for each in CellOutbox.objects.filter(pk=made[3].pk)] == [3]

    def test_a_nested_context_adds_to_the_outermost_one(self) -> None:
        with (
            CaptureQueriesContext(connections[US]) as queries,
            outbox_context(transaction.atomic(using=US)),
        ):
            message(obj=1).save()
            with outbox_context(transaction.atomic(using=US)):
                message(obj=2).save()
            with outbox_context(flush=False):
                message(obj=3).save()
            message(obj=4).save()
        assert len(inserts(queries)) == 1
        assert objects() == [1, 2, 3, 4]

    def test_each_database_has_a_buffer_of_its_own(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with assume_silo(SiloMode.CELL, cell="eu"):
                with outbox_context(transaction.atomic(using="cell_eu")):
                    message(obj=2).save()
                assert objects() == [2]
        assert objects() == [1]
        with assume_silo(SiloMode.CELL, cell="eu"):
            assert objects() == [2]

    def test_an_object_saved_twice_is_written_once_with_the_last_payload(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            first = message(obj=1, payload={"n": 1})
            first.save()
            message(obj=2).save()
            last = message(obj=1, payload={"n": 2})
            last.save()
        assert stored() == [(9000, 2, None), (9000, 1, {"n": 2})]
        assert first.pk == last.pk

    def test_events_are_never_merged(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(Kind.ORDERED, obj=1, payload=1).save()
            message(Kind.ORDERED, obj=1, payload=2).save()
        assert stored() == [(9005, 1, 1), (9005, 1, 2)]

    def test_the_payload_is_what_it_was_when_saved(self) -> None:
        payload = {"n": 1}
        with outbox_context(transaction.atomic(using=US)):
            message(payload=payload).save()
            payload["n"] = 2
        assert stored() == [(9000, 1, {"n": 1})]

    def test_reading_the_table_inside_finds_what_was_saved(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            assert objects() == [1]
            message(obj=2).save()
            with connections[US].cursor() as cursor:
                cursor.execute("SELECT count(*) FROM hybridcloud_celloutbox")
                assert cursor.fetchone() == (2,)
        assert objects() == [1, 2]

    def test_a_bare_atomic_writes_at_once(self) -> None:
        with CaptureQueriesContext(connections[US]) as queries, transaction.atomic(using=US):
            made = message(obj=1)
            made.save()
            assert made.pk
            assert len(inserts(queries)) == 1

    def test_a_context_that_is_kept_beyond_the_block_writes_at_once(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            kept = contextvars.copy_context()
        kept.run(message(obj=1).save)
        assert objects() == [1]

    def test_a_bulk_create_of_messages_is_one_insert(self) -> None:
        with CaptureQueriesContext(connections[US]) as queries:
            CellOutbox.objects.bulk_create([message(obj=number) for number in range(1000)])
        assert len(inserts(queries)) == 1
        assert objects() == list(range(1000))

    def test_more_than_a_statements_worth_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hybridcloud.outbox.write.insert.MOST_PER_STATEMENT", 4)
        with CaptureQueriesContext(connections[US]) as queries:
            CellOutbox.objects.bulk_create([message(obj=number) for number in range(10)])
        assert len(inserts(queries)) == 3
        assert objects() == list(range(10))


class TestValidation:
    def test_a_wrong_pair_is_refused_and_nothing_of_the_batch_is_written(self) -> None:
        wrong = message()
        wrong.category = Kind.ORDERED.value
        with pytest.raises(InvalidOutboxError, match=r"Kind\.ORDERED does not belong to PLAIN"):
            write_messages([message(), wrong], using=US)
        assert objects() == []

    def test_a_message_is_saved_once(self) -> None:
        made = message()
        made.save()
        with pytest.raises(InvalidOutboxError, match="Saved before: message"):
            made.save()

    def test_a_payload_that_is_no_json_is_an_error_of_its_own_save(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            with pytest.raises(InvalidOutboxError, match="not JSON serializable"):
                message(payload=object()).save()
            with pytest.raises(InvalidOutboxError, match="not JSON compliant"):
                message(payload=float("nan")).save()
            message(obj=2).save()
        assert objects() == [2]

    def test_the_database_fills_the_times(self) -> None:
        message().save()
        row = CellOutbox.objects.get()
        with connections[US].cursor() as cursor:
            cursor.execute(
                "SELECT abs(extract(epoch FROM clock_timestamp() - %s)) < 60", [row.date_added]
            )
            assert cursor.fetchone() == (True,)
        assert row.headers is None

    def test_messages_carry_the_causation_that_they_were_written_in(self) -> None:
        cause = causation.Causation("abc", 2, ("A", "B"))
        with causation.inside(cause), outbox_context(transaction.atomic(using=US)):
            message().save()
            CellOutbox.objects.bulk_create([message(obj=2), message(obj=3)])
        headers = list(CellOutbox.objects.values_list("headers", flat=True))
        assert headers == [{"correlation": "abc", "depth": 2, "chain": ["A", "B"]}] * 3


class TestDelay:
    def test_a_delayed_message_is_parked_by_the_databases_clock(self) -> None:
        message(obj=1, delay=timedelta(hours=1), payload={"n": 1}).save()
        assert objects() == []
        row = CellParked.objects.get()
        assert (row.reason, row.object_identifier, row.payload) == ("delayed", 1, {"n": 1})
        with connections[US].cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM scheduled_for - clock_timestamp()) BETWEEN 3590 AND 3600 "
                "FROM hybridcloud_cellparked"
            )
            assert cursor.fetchone() == (True,)

    def test_delayed_and_other_messages_are_an_insert_each_with_ids_of_one_sequence(self) -> None:
        late, now, later = (
            message(obj=1, delay=timedelta(hours=1)),
            message(obj=1),
            message(obj=1, delay=timedelta(hours=2)),
        )
        with (
            CaptureQueriesContext(connections[US]) as queries,
            outbox_context(transaction.atomic(using=US)),
        ):
            for each in (late, now, later):
                each.save()
        assert len(inserts(queries)) == 2
        assert len({late.pk, now.pk, later.pk}) == 3
        assert CellParked.objects.count() == 2

    def test_reading_the_parked_table_inside_finds_it(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(delay=timedelta(hours=1)).save()
            assert CellParked.objects.count() == 1

    def test_no_delay_is_no_delay(self) -> None:
        message(delay=timedelta(0)).save()
        assert objects() == [1]
