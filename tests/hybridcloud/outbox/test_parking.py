"""Rule 3: what may not run now is parked with the reason, and the rest of its shard goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox, RetryLater, process_cell_outbox
from hybridcloud.outbox.drain.parked import Freed, bring_back_freed
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellParked, Level

from .engine import US, Kind, drain_us, failures, ids, listening, message, parked, put, write

pytestmark = [pytest.mark.rule(3), pytest.mark.usefixtures("committed")]


def _make_parked_due() -> None:
    CellParked.objects.using(US).update(scheduled_for="2020-01-01T00:00:00Z")


def test_a_message_without_receiver_is_parked_and_the_rest_of_its_shard_goes_on() -> None:
    unknown = put(Kind.SILENT, obj=1)
    put(Kind.PLAIN, obj=2)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [2]
    assert parked("unknown") == [unknown]
    assert ids() == []


def test_a_parked_message_comes_back_once_the_code_knows_it() -> None:
    put(Kind.SILENT, obj=1, payload="kept")
    drain_us()
    with listening(Kind.SILENT) as seen:
        drain_us()
    assert seen.calls == [(Kind.SILENT, 1, "kept")]
    assert parked() == ids() == []


def test_a_message_of_a_category_that_nobody_declares_is_parked() -> None:
    put(obj=1)
    CellOutbox.objects.using(US).update(category=8888)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.calls == []
    assert len(parked("unknown")) == 1


def test_messages_of_retired_categories_are_dropped_and_counted() -> None:
    put(obj=1)
    CellOutbox.objects.using(US).update(category=Kind.GONE)
    facts: list[hooks.Handled] = []

    class Watch(hooks.Hooks):
        def handled(self, fact: hooks.Handled) -> None:
            facts.append(fact)

    with hooks.installed(Watch()):
        drain_us()
    assert ids() == parked() == []
    assert [fact.retired for fact in facts] == [{Kind.GONE: 1}]


def test_retry_later_is_no_failure_and_keeps_id_and_date() -> None:
    message_id = put(Kind.ORDERED, obj=1, payload="p")
    added = CellOutbox.objects.using(US).get().date_added
    later = True

    def act(**_: Any) -> None:
        if later:
            raise RetryLater(timedelta(hours=1), "parent missing")

    with listening(Kind.ORDERED, act=act) as seen:
        drain_us()
        assert failures() == []
        row = CellParked.objects.using(US).get()
        assert (row.id, row.reason, row.date_added) == (message_id, "delayed", added)
        assert row.scheduled_for - row.scheduled_from == timedelta(hours=1)
        drain_us()
        assert len(seen.calls) == 1
        later = False
        _make_parked_due()
        drain_us()
    assert len(seen.calls) == 2
    assert ids() == parked() == []


def test_a_delay_in_an_ordered_scope_holds_later_messages_of_its_key_and_nothing_else() -> None:
    first = put(Kind.ORDERED, obj=1)

    def act(*, object_identifier: int, message_id: int, **_: Any) -> None:
        if message_id == first and blocked:
            raise RetryLater(3600)

    blocked = True
    with listening(Kind.ORDERED, act=act) as seen:
        drain_us()
        second, other = put(Kind.ORDERED, obj=1), put(Kind.ORDERED, obj=2)
        drain_us()
        assert [m["message_id"] for m in seen.messages] == [first, other]
        assert parked("held") == [second]
        blocked = False
        _make_parked_due()
        drain_us()
    assert [m["message_id"] for m in seen.messages] == [first, other, first, second]


def test_a_delayed_message_waits_in_the_parked_table_from_the_start() -> None:
    (message_id,) = write(message(obj=1, delay=timedelta(hours=1)))
    newer = put(obj=2)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [2]
    assert parked("delayed") == [message_id]
    assert message_id < newer


def test_an_older_delayed_payload_is_never_handled_after_a_newer_one() -> None:
    """In a coalescing scope the newer message takes the older parked one with it."""
    write(message(obj=1, payload="old", delay=timedelta(hours=1)))
    put(obj=1, payload="new")
    with listening(Kind.PLAIN) as seen:
        drain_us()
        _make_parked_due()
        drain_us()
    assert [call[2] for call in seen.calls] == ["new"]
    assert parked() == ids() == []


def test_a_newer_delayed_message_does_not_go_with_an_older_one() -> None:
    put(obj=1, payload="now")
    write(message(obj=1, payload="later", delay=timedelta(hours=1)))
    with listening(Kind.PLAIN) as seen:
        drain_us()
        assert len(parked("delayed")) == 1
        _make_parked_due()
        drain_us()
    assert [call[2] for call in seen.calls] == ["now", "later"]


def test_a_message_that_is_brought_back_while_its_successor_runs_is_gone_with_it() -> None:
    write(message(obj=1, payload="old", delay=timedelta(hours=1)))
    put(obj=1, payload="new")

    def act(**_: Any) -> None:
        from .engine import Worker

        _make_parked_due()
        from hybridcloud.outbox.drain.parked import bring_back
        from hybridcloud.outbox.store.session import Engine
        from hybridcloud.outbox.store.switches import current

        with Worker(lambda: bring_back(Engine(CellOutbox, US), current())) as mover:
            pass
        assert mover.result == 1

    with listening(Kind.PLAIN, act=act) as seen:
        drain_us()
    assert [call[2] for call in seen.calls] == ["new"]
    assert ids() == parked() == []


def test_retry_later_in_an_at_most_once_scope_is_a_failure() -> None:
    message_id = put(Kind.ONCE, obj=1)

    def act(**_: Any) -> None:
        raise RetryLater(1)

    with listening(Kind.ONCE, act=act):
        drain_us()
    assert parked("dead") == [message_id]


def test_a_receiver_of_another_category_does_not_count() -> None:
    assert not process_cell_outbox.has_listeners(Kind.SILENT)


@pytest.mark.parametrize(("level", "comes_back"), [(Level.OBJECT, [1]), (Level.CATEGORY, [1, 3])])
def test_a_success_brings_back_what_it_held_and_nothing_else(
    level: Level, comes_back: list[int]
) -> None:
    own, other = Kind.BY_CATEGORY, Kind.BY_CATEGORY_OTHER
    scope = int(own.get_scope())
    for number, shard, kind, obj, reason in [
        (1, 1, own, 7, "held"),
        (2, 1, own, 7, "dead"),
        (3, 1, own, 8, "held"),
        (4, 1, own, 8, "delayed"),
        (5, 1, other, 7, "held"),
        (6, 2, own, 7, "held"),
    ]:
        CellParked.objects.using(US).create(
            id=number,
            shard_scope=scope,
            shard_identifier=shard,
            category=kind,
            object_identifier=obj,
            reason=reason,
        )
    bring_back_freed(Engine(CellOutbox, US), [Freed(ShardKey(scope, 1), level, int(own), 7)])
    assert ids() == comes_back
    assert parked() == sorted({1, 2, 3, 4, 5, 6} - set(comes_back))
