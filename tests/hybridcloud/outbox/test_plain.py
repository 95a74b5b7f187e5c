"""Messages that are handled in a row: every rule holds there as where each is looked at closely."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from hybridcloud.outbox import CellOutbox, process_cell_outbox
from hybridcloud.outbox.declare.signals import RetryLater
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo

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
    pass_time,
    put,
    tune,
    write,
)

pytestmark = pytest.mark.usefixtures("committed")


@pytest.mark.rule(2)
def test_what_was_handled_is_acknowledged_in_time_though_the_batch_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune(longest_unacknowledged_s=0.0)
    first, second = write(*(message(Kind.ORDERED, obj=n) for n in (1, 2)))
    left: list[list[int]] = []

    def act(**_: Any) -> None:
        with Worker(ids) as looks:
            pass
        left.append(looks.result)

    with listening(Kind.ORDERED, act=act):
        drain_us()
    assert left == [[first, second], [second]]


@pytest.mark.rule(7)
def test_a_drainer_whose_shard_was_taken_handles_nothing_more_of_it() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in (1, 2, 3)))
    others: list[int] = []

    def act(*, object_identifier: int, **_: Any) -> None:
        if threading.current_thread() is not drainer:
            others.append(object_identifier)
        elif object_identifier == 1:
            with connections[US].cursor() as cursor:
                cursor.execute("UPDATE hybridcloud_celllease SET until = '2020-01-01'")
            with Worker(drain_us):
                pass
            pass_time(5)  # a drainer looks at its lease when a third of it is gone

    drainer = Worker(drain_us)
    with listening(Kind.ORDERED, act=act) as seen, drainer:
        drainer.finish()
    assert others == [1, 2, 3]
    assert seen.objects == [1, 1, 2, 3]
    assert ids() == []


@pytest.mark.rule(3)
def test_a_message_is_kept_whose_receiver_went_away_on_the_way() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in (1, 2)))
    calls: list[int] = []

    def receive(*, object_identifier: int, **_: Any) -> None:
        calls.append(object_identifier)
        process_cell_outbox.disconnect(receive, sender=Kind.ORDERED)

    process_cell_outbox.connect(receive, sender=Kind.ORDERED, weak=False)
    drain_us()
    assert calls == [1]
    assert len(ids()) + len(parked()) == 1


@pytest.mark.rule(4)
@pytest.mark.parametrize("what", [LookupError, RetryLater])
def test_after_what_a_handler_raises_each_message_is_looked_at_closely(
    what: type[Exception],
) -> None:
    kind = Kind.ORDERED_BY_OBJECT
    write(*(message(kind, obj=obj, payload=n) for n, obj in enumerate((1, 2, 1, 3))))
    raised = RetryLater(3600) if what is RetryLater else what("no")

    def act(*, payload: int, **_: Any) -> None:
        if payload == 0:
            raise raised

    with listening(kind, act=act) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == [0, 1, 3]
    assert len(parked()) == 2
    assert len(failures()) == (0 if what is RetryLater else 1)


def test_shards_of_several_scopes_go_by_their_own_policies() -> None:
    put(Kind.PLAIN, shard=1, payload="old")
    put(Kind.PLAIN, shard=1, payload="new")
    put(Kind.ORDERED, shard=1, payload="old")
    put(Kind.ORDERED, shard=1, payload="new")
    with listening(Kind.PLAIN, Kind.ORDERED) as seen:
        drain_us()
    assert seen.calls == [
        (Kind.PLAIN, 1, "new"),
        (Kind.ORDERED, 1, "old"),
        (Kind.ORDERED, 1, "new"),
    ]


def test_a_handler_hears_when_its_message_was_added_and_when_it_was_due() -> None:
    put(Kind.ORDERED, obj=1)
    late = put(Kind.ORDERED, obj=2)
    with connections[US].cursor() as cursor:
        cursor.execute(
            "UPDATE hybridcloud_celloutbox SET scheduled_for = date_added + interval '1.25 s' "
            "WHERE id = %s",
            [late],
        )
    rows = list(CellOutbox.objects.using(US).order_by("id"))
    with listening(Kind.ORDERED) as seen:
        drain_us()
    heard = [(each["date_added"], each["scheduled_for"]) for each in seen.messages]
    assert heard == [(row.date_added, row.scheduled_for) for row in rows]


@pytest.mark.rule(8)
def test_a_drain_whose_time_is_over_still_takes_a_lost_drainers_shard_over() -> None:
    lost, due = put(Kind.ORDERED, shard=1, obj=1), put(Kind.ORDERED, shard=2, obj=2)
    assert lost < due
    with connections[US].cursor() as cursor:
        cursor.execute(
            "INSERT INTO hybridcloud_celllease (shard_scope, shard_identifier, owner, token, until)"
            " VALUES (%s, 1, 'gone', 1, '2020-01-01')",
            [int(Kind.ORDERED.get_scope())],
        )
    with listening(Kind.ORDERED) as seen, assume_silo(SiloMode.CELL, cell="us"):
        Drainer(CellOutbox, US).sweep(budget=0)
    assert seen.objects == [2, 1]


@pytest.mark.rule(8)
def test_a_drain_that_is_asked_to_stop_ends_with_the_shard_and_gives_the_others_back() -> None:
    for shard in (1, 2, 3):
        put(Kind.ORDERED, shard=shard, obj=shard)
    asked: list[bool] = []

    def act(**_: Any) -> None:
        asked.append(True)

    with (
        listening(Kind.ORDERED, act=act) as seen,
        assume_silo(SiloMode.CELL, cell="us"),
    ):
        Drainer(CellOutbox, US, stopped=lambda: bool(asked)).sweep()
    assert seen.objects == [1]
    assert len(ids()) == 2
    assert leases() == []
