"""What a message costs, in round trips, statements, commits, rows and log: the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.store.state import CellLease
from silos import SiloMode, assume_silo

from .engine import US, Kind, Lane, drain_us, ids, listening, message, tune
from .wire import Traffic, traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.usefixtures("committed")

IDLE = 12
"""Round trips of a sweep that finds nothing: for suspects, due shards and parked messages, a few times."""


def fill(rows: Iterable[tuple[int, int]], kind: Kind = Kind.PLAIN) -> None:
    """Commit messages for (shard, object); several about one object stay several."""
    CellOutbox.objects.using(US).bulk_create([message(kind, shard, obj) for shard, obj in rows])


def drain(kind: Kind = Kind.PLAIN, *, calls: int) -> Traffic:
    """Drain the us cell and return what passed; all is handled, with so many calls."""
    with listening(kind) as seen, traffic(US) as passed:
        drain_us()
    assert len(seen.calls) == calls
    assert ids() == []
    return passed


@pytest.fixture(autouse=True)
def _warm(committed: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the same on a slow machine: neither renewals nor acknowledgements by the clock."""
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "LEASE": 600}
    tune(longest_unacknowledged_s=600.0)
    drain_us()


SHAPES = {
    "many shards of one": ([(shard, 1) for shard in range(4096)], 4096),
    "one shard of many objects": ([(1, obj) for obj in range(1000)], 1000),
    "one shard, many messages on ten objects": ([(1, n % 10) for n in range(1000)], 10),
    "a square": ([(n % 30, n // 30) for n in range(900)], 900),
}


@pytest.mark.parametrize(
    ("name", "round_trips", "statements"),
    [
        # Eight passes of 512: claim, fetch, five acknowledgements, and the last with the release.
        ("many shards of one", 8 * 8, 8 * 9),
        ("one shard of many objects", 2 + 10 + 1, 2 + 10 + 1),
        # Nothing grows with messages that are superseded, but the ids in one DELETE.
        ("one shard, many messages on ten objects", 2 + 10 + 1, 2 + 10 + 1),
        ("a square", 2 + 9 + 1, 2 + 9 + 1),
    ],
)
def test_a_shape_is_drained_in_few_round_trips(
    name: str, round_trips: int, statements: int
) -> None:
    rows, calls = SHAPES[name]
    fill(rows)
    passed = drain(calls=calls)
    assert passed.round_trips <= round_trips + IDLE
    assert passed.statements.total() <= statements + IDLE
    # A claim is a commit, and so are each acknowledgement and each look around.
    assert passed.commits <= round_trips + IDLE


@pytest.mark.parametrize("name", SHAPES)
def test_draining_deletes_each_message_once_and_updates_none(name: str) -> None:
    rows, calls = SHAPES[name]
    fill(rows)
    shards = len({shard for shard, _ in rows})
    passed = drain(calls=calls)
    assert passed.rows["DELETE"] == len(rows) + shards
    assert passed.rows["INSERT"] == shards
    assert passed.statements["UPDATE"] <= IDLE
    assert passed.rows["UPDATE"] == 0


def test_a_deeper_shard_costs_no_more_for_each_message() -> None:
    fill((1, obj) for obj in range(500))
    shallow = drain(calls=500)
    fill((1, obj) for obj in range(5000))
    deep = drain(calls=5000)
    assert deep.round_trips / 5000 <= shallow.round_trips / 500
    # Beyond the acknowledgements of what is more, nothing.
    assert deep.round_trips - shallow.round_trips <= 4500 / 100 + 2


def test_more_shards_in_a_pass_cost_no_more_round_trips() -> None:
    fill((shard, obj) for obj in range(4) for shard in range(20))
    few = drain(calls=80)
    fill((shard, 1) for shard in range(80))
    many = drain(calls=80)
    assert many.round_trips <= few.round_trips


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        # The acknowledgement.
        (Kind.SINGLE, 1),
        # BEGIN, its time, the fence, the acknowledgement, COMMIT.
        (Kind.ATOMIC, 5),
        # Into the dead letters, and out of them.
        (Kind.ONCE, 2),
    ],
)
def test_a_message_that_is_acknowledged_alone_costs_what_its_promise_needs(
    kind: Kind, each: int
) -> None:
    fill(((1, obj) for obj in range(50)), kind)
    passed = drain(kind, calls=50)
    assert passed.round_trips <= 50 * each + 3 + IDLE


def test_a_suspect_shard_costs_a_mark_and_an_acknowledgement_for_each_message() -> None:
    fill((1, obj) for obj in range(50))
    CellLease.objects.using(US).create(
        shard_scope=Lane.PLAIN.value,
        shard_identifier=1,
        owner="gone",
        token=1,
        until="2020-01-01T00:00:00Z",
    )
    passed = drain(calls=50)
    assert 100 <= passed.round_trips <= 100 + 3 + IDLE


def test_handling_a_message_writes_little_log() -> None:
    fill((1, obj) for obj in range(2000))
    passed = drain(calls=2000)
    # A deletion of a row is some 60 bytes; a rewrite of rows or of their indexes is several times that.
    assert passed.wal < 2000 * 200


def test_saving_many_messages_is_one_insert_and_one_commit() -> None:
    with traffic(US) as passed:
        fill((1, obj) for obj in range(2000))
    assert passed.statements == {"INSERT": 1}
    assert passed.rows["INSERT"] == 2000
    assert passed.commits == 1
    assert passed.round_trips <= 3
    # The row, and an entry in each of its two indexes; a third index would show.
    assert passed.wal < 2000 * 450


def test_saving_one_message_is_one_insert_in_the_transaction_of_its_writer() -> None:
    with (
        traffic(US) as passed,
        outbox_context(transaction.atomic(using=US), flush=False),
    ):
        message(obj=1).save(using=US)
    assert passed.statements == {"INSERT": 1}
    # BEGIN, INSERT, COMMIT.
    assert passed.round_trips == 3
    assert passed.commits == 1


def test_finding_due_shards_is_two_statements_at_any_depth() -> None:
    """One for those that are due, one for those of lost drainers."""
    found = {}
    for depth in (10, 1000):
        fill((shard, obj) for shard in range(3) for obj in range(depth))
        with traffic(US) as passed, assume_silo(SiloMode.CELL, cell="us"):
            due = CellOutbox.find_scheduled_shards()
        assert len(due) == 3
        found[depth] = passed.round_trips
    assert found == {10: 2, 1000: 2}
