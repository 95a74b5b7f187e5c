"""What a message may hold: times, payloads, cells, and how it is flushed.

The kinds of times: a delay, a time to come, a past one, both, none. The kinds of payloads: what is no
JSON, what PostgreSQL does not store, what Django's encoder knows. The kinds of flushes.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from hybridcloud.errors import ConfigurationError, InvalidOutboxError
from hybridcloud.outbox import CellOutbox, ReplicatedCellModel, outbox_context
from hybridcloud.outbox.deliver import flush as flushing
from hybridcloud.outbox.store.state import CellParked
from hybridcloud.outbox.write.registration import register
from silos import SiloMode, assume_silo
from silos.errors import UnknownCellError

from .engine import US, Kind, drain_us, ids, listening, message, parked
from .wire import traffic
from .zoo import Pen

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture(autouse=True)
def _unflushed(settings: Any) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "cron"}


def _database_now() -> datetime:
    with connections[US].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def _in_block(each: CellOutbox) -> None:
    with transaction.atomic(using=US):
        each.save(using=US)


def _in_context(each: CellOutbox) -> None:
    with outbox_context(transaction.atomic(using=US), flush=False):
        each.save(using=US)


def _in_bulk(each: CellOutbox) -> None:
    with assume_silo(SiloMode.CELL, cell="us"):
        CellOutbox.objects.bulk_create([each, message(obj=99)])


SAVES: dict[str, Callable[[CellOutbox], None]] = {
    "alone": lambda each: each.save(using=US),
    "in a block": _in_block,
    "in a context": _in_context,
    "in bulk": _in_bulk,
}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("how", ["set", "given"])
def test_a_time_to_come_is_waited_for(save: str, how: str) -> None:
    due = _database_now() + timedelta(hours=1)
    if how == "set":
        made = message(obj=7, scheduled_for=due)
    else:
        columns = ("shard_scope", "shard_identifier", "category", "object_identifier")
        made = CellOutbox(
            scheduled_for=due, **{name: getattr(message(obj=7), name) for name in columns}
        )
    SAVES[save](made)
    (row,) = CellParked.objects.using(US).all()
    assert (row.pk, row.reason, row.scheduled_for) == (made.pk, "delayed", due)
    with listening(Kind.PLAIN) as seen:
        drain_us()
        assert 7 not in seen.objects
        CellParked.objects.using(US).update(scheduled_for="2020-01-01T00:00:00Z")
        drain_us()
    assert 7 in seen.objects


@pytest.mark.parametrize("save", SAVES)
def test_a_past_time_is_now(save: str) -> None:
    made = message(obj=7, scheduled_for=_database_now() - timedelta(seconds=1))
    SAVES[save](made)
    assert made.pk in ids()
    assert parked() == []


def test_the_database_decides_what_is_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer's clock that is an hour ahead makes nothing due."""
    from django.utils import timezone

    due = _database_now() + timedelta(minutes=1)
    monkeypatch.setattr(timezone, "now", lambda: due + timedelta(hours=1))
    message(obj=7, scheduled_for=due).save(using=US)
    assert (ids(), len(parked("delayed"))) == ([], 1)


@pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1)])
def test_a_delay_may_be_given_where_a_message_is_made(delay: Any) -> None:
    made = Kind.PLAIN.as_cell_outbox(shard_identifier=1, object_identifier=1, delay=delay)
    made.save(using=US)
    (row,) = CellParked.objects.using(US).all()
    assert row.scheduled_for - row.scheduled_from == timedelta(minutes=1)
    several = Kind.PLAIN.as_control_outboxes(
        ["us", "eu"], shard_identifier=1, object_identifier=1, delay=delay
    )
    assert [each.delay for each in several] == [timedelta(minutes=1)] * 2


@pytest.mark.parametrize("delay", [0, -5, timedelta(-1), None])
def test_no_delay_is_now(delay: Any) -> None:
    made = Kind.PLAIN.as_cell_outbox(shard_identifier=1, object_identifier=1, delay=delay)
    made.save(using=US)
    assert ids() == [made.pk]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"scheduled_for": datetime(2030, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - the case
        ({"scheduled_for": "2030-01-01"}, "with a time zone"),
        ({"delay": timedelta.max}, "at most 3650 days"),
        ({"delay": 5}, "Give a timedelta"),
        (
            {"delay": timedelta(1), "scheduled_for": datetime(2030, 1, 1, tzinfo=UTC)},
            "Give one of them",
        ),
    ],
    ids=str,
)
def test_a_time_that_makes_no_sense_is_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOutboxError, match=words):
        message(obj=1, **columns).save(using=US)
    assert (ids(), parked()) == ([], [])


def test_a_message_with_a_time_replaces_none() -> None:
    with outbox_context(transaction.atomic(using=US), flush=False):
        message(obj=1, payload="now").save(using=US)
        due = _database_now() + timedelta(hours=1)
        message(obj=1, payload="later", scheduled_for=due).save(using=US)
    assert (len(ids()), len(parked("delayed"))) == (1, 1)


BAD: dict[str, tuple[Any, str]] = {
    "a set": ({1, 2}, "Not JSON"),
    "an object": (object(), "Not JSON"),
    "a NaN": ({"a": float("nan")}, "Not JSON"),
    "an infinity": ([float("inf")], "Not JSON"),
    "a tuple as key": ({(1, 2): 3}, "Not JSON"),
    "a NUL": ({"a": ["x\x00"]}, "a NUL in"),
    "a NUL in a key": ({"a\x00": 1}, "a NUL in"),
    "a lone surrogate": ({"a": {"b": "\udc80"}}, "a lone surrogate in"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_payload_that_cannot_be_stored_is_refused_before_any_sql(name: str) -> None:
    payload, words = BAD[name]
    message(obj=1).save(using=US)
    before = ids()
    with (
        traffic(US) as passed,
        pytest.raises(InvalidOutboxError, match=rf"{words}.*") as caught,
    ):
        message(Kind.PLAIN, shard=5, obj=7, payload=payload).save(using=US)
    assert passed.round_trips == 0
    assert "PLAIN object 7 in PLAIN:5" in str(caught.value)
    assert ids() == before


def test_a_list_that_contains_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(InvalidOutboxError, match="Not JSON"):
        message(payload=payload).save(using=US)


@pytest.mark.parametrize("text", ["\\u0000", "\\ud800", "😀", "\\\\u0000"])
def test_text_that_only_looks_like_it_is_stored_as_it_is(text: str) -> None:
    message(obj=1, payload={"a": text}).save(using=US)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.calls[0][2] == {"a": text}


def test_dates_decimals_and_uuids_are_encoded_as_django_does() -> None:
    payload = {
        "date": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "price": Decimal("1.10"),
        "id": UUID(int=7),
    }
    message(obj=1, payload=payload).save(using=US)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.calls[0][2] == {
        "date": "2026-01-02",
        "at": "2026-01-02T03:00:00Z",
        "price": "1.10",
        "id": str(UUID(int=7)),
    }


def test_an_unknown_cell_is_refused_at_the_call() -> None:
    with pytest.raises(UnknownCellError, match="Did you mean 'us'"):
        Kind.PLAIN.as_control_outboxes(["uss"], shard_identifier=1, object_identifier=1)


def test_a_control_message_says_its_scope_shard_and_cell() -> None:
    (made,) = Kind.PLAIN.as_control_outboxes(["us"], shard_identifier=5, object_identifier=7)
    assert str(made) == "message None of PLAIN object 7 in PLAIN:5 for us"


class TestFlush:
    """How messages are flushed may be said for a block, and for a model."""

    @pytest.fixture(autouse=True)
    def modes(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        seen: list[str] = []
        monkeypatch.setattr(flushing, "flush_written", lambda _, mode: seen.append(mode))
        return seen

    def write(self, flush: Any) -> None:
        with outbox_context(transaction.atomic(using=US), flush=flush):
            message(obj=1).save(using=US)

    @pytest.mark.parametrize(
        ("setting", "flush", "wanted"),
        [
            ("sync", True, ["sync"]),
            ("sync", None, ["sync"]),
            ("sync", "kick", ["kick"]),
            ("sync", "cron", []),
            ("sync", False, []),
            ("kick", "sync", ["sync"]),
            ("kick", True, ["kick"]),
            ("cron", True, []),
            ("cron", "sync", ["sync"]),
            ("cron", "kick", ["kick"]),
        ],
    )
    def test_a_block_says_how(
        self, setting: str, flush: Any, wanted: list[str], modes: list[str], settings: Any
    ) -> None:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": setting}
        self.write(flush)
        assert modes == wanted
        assert len(ids()) == 1

    @pytest.mark.parametrize("flush", ["", "Sync", "never", 1, 0, [], object()])
    def test_anything_else_is_refused(self, flush: Any, modes: list[str]) -> None:
        with pytest.raises(ValueError, match=r"^Wrong flush .* Use 'sync', 'kick', 'cron'"):
            self.write(flush)
        with pytest.raises(ValueError, match=r"^Wrong flush"):
            outbox_context(flush=flush).__enter__()
        assert (modes, ids()) == ([], [])

    @pytest.mark.parametrize("flush", ["Sync", 1])
    def test_a_models_own_is_refused_where_it_is_declared(
        self, flush: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Pen, "default_flush", flush)
        with pytest.raises(ConfigurationError, match=r"Wrong default_flush of zoo\.Pen"):
            register(Pen)
        assert issubclass(Pen, ReplicatedCellModel)

    def test_messages_of_several_kinds_are_flushed_each_in_its_way(
        self, modes: list[str], settings: Any
    ) -> None:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "kick"}
        with transaction.atomic(using=US):
            self.write("sync")
            self.write("cron")
            self.write(True)
        assert sorted(modes) == ["kick", "sync"]
