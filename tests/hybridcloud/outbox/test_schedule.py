"""Due shards are found in time that grows with shards, and shared fairly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain.due import FIRST, due_params, find_due_shards, split
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.switches import Switches

from .engine import US, Kind, Lane, drain_us, ids, leases, listening, message, put, write

committed = pytest.mark.usefixtures("committed")


@given(st.integers(0, 300), st.integers(1, 9))
def test_a_split_covers_all_due_shards_with_no_more_tasks_than_asked_for(
    count: int, parts: int
) -> None:
    due = [ShardKey(1, n) for n in range(count)]
    tasks = split(due, parts)
    assert 1 <= len(tasks) <= parts
    assert tasks[0][0] == FIRST
    assert sum(share for _, share in tasks) >= count
    starts = [start for start, _ in tasks[1:]]
    assert starts == sorted(set(starts))
    shares = [share for _, share in tasks]
    assert max(shares) - min(shares) == 0


@committed
def test_due_shards_are_those_that_could_be_drained_now() -> None:
    for shard in (1, 2, 3):
        put(shard=shard)
    put(Kind.ORDERED, shard=9)

    def act(*, shard_identifier: int, **_: Any) -> None:
        if shard_identifier == 2:
            raise ValueError

    assert find_due_shards(CellOutbox, alias=US, limit=10) == [
        ShardKey(Lane.PLAIN, 1),
        ShardKey(Lane.PLAIN, 2),
        ShardKey(Lane.PLAIN, 3),
        ShardKey(Lane.ORDERED, 9),
    ]
    with listening(Kind.PLAIN, act=act):
        drain_us()
    put(shard=1)
    assert find_due_shards(CellOutbox, alias=US, limit=10) == [ShardKey(Lane.PLAIN, 1)]
    assert find_due_shards(CellOutbox, alias=US, limit=0) == []


def hits(engine: Engine, name: str, params: dict[str, Any]) -> int:
    """Return the blocks that a statement reads."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {engine.sql(name)}"
    ((plan,),) = engine.results([explain], params)[0]
    (root,) = json.loads(plan) if isinstance(plan, str) else plan
    return int(root["Plan"]["Shared Hit Blocks"])


@committed
def test_the_scan_reads_index_tuples_by_shards_and_not_by_messages() -> None:
    """EXPLAIN ANALYZE: 300 messages in a shard cost what 30 cost; the first few hundred are read as they come."""

    def buffers(depth: int) -> int:
        with connections[US].cursor() as cursor:
            cursor.execute("TRUNCATE hybridcloud_celloutbox")
        write(*(message(shard=n % 20, obj=n) for n in range(20 * depth)))
        engine = Engine(CellOutbox, US)
        params = due_params(Switches(), after=FIRST, most=100, cell=None)
        with connections[US].cursor() as cursor:
            cursor.execute("VACUUM ANALYZE hybridcloud_celloutbox")
        return hits(engine, "find_due", params)

    assert buffers(300) <= 2 * buffers(30)


@committed
@pytest.mark.parametrize("shards", [1, 100])
@pytest.mark.parametrize(
    "name",
    [
        "find_due",
        "claim_known",
        "claim_suspect",
        "claim_crashed",
        "stale",
        "fetch",
        "fetch_own",
        "fetch_own_one",
        "failures_of_shards",
        "own_left",
    ],
)
def test_a_pass_costs_the_same_however_many_other_shards_fail(name: str, shards: int) -> None:
    scope = int(Kind.ORDERED.get_scope())
    keys = [ShardKey(scope, each) for each in range(1, shards + 1)]
    engine = Engine(CellOutbox, US)
    params = {
        **due_params(Switches(), after=FIRST, most=100, cell=None),
        **engine.keys(keys),
        "owner": "somebody",
        "token": 1,
        "lease": 15,
        "after": 0,
        "afters": [0] * shards,
        "bound": 10**12,
        "categories": [Kind.ORDERED.value],
        "objects": [1],
        "ids": [],
        "only": None,
        "off": [],
    }

    def buffers(failures: int) -> int:
        with connections[US].cursor() as cursor:
            cursor.execute("TRUNCATE hybridcloud_celllease, hybridcloud_cellfailure")
            cursor.execute(
                "INSERT INTO hybridcloud_cellfailure (shard_scope, shard_identifier, level, category,"
                " object_identifier, message_id, attempts, scheduled_from, scheduled_for, crashed,"
                " last_error, last_traceback)"
                " SELECT %s, 1000 + n, 2, 1, n, n, 1, now(), now(), false, '', ''"
                " FROM generate_series(1, %s) n",
                [scope, failures],
            )
            cursor.execute("VACUUM ANALYZE hybridcloud_cellfailure")
        return hits(engine, name, params)

    write(*(message(Kind.ORDERED, shard=key.identifier) for key in keys))
    assert buffers(2000) <= buffers(0) + 10 + 5 * shards


@committed
def test_a_deep_shard_and_shallow_ones_both_move_in_one_pass() -> None:
    write(*(message(Kind.ORDERED, shard=1, obj=n) for n in range(6000)))
    for shard in range(2, 30):
        put(Kind.ORDERED, shard=shard, obj=shard)
    order: list[int] = []

    class Watch(hooks.Hooks):
        def before_handler(self, call: hooks.HandlerCall) -> None:
            order.append(call.shard[-1])

    with listening(Kind.ORDERED), hooks.installed(Watch()):
        drain_us()
    assert len(order) == 6028
    assert max(order.index(shard) for shard in range(2, 30)) < 1000
    assert ids() == []


@committed
def test_prepare_next_from_shard_claims_and_its_message_drains_with_the_claim() -> None:
    first = put(obj=1)
    put(obj=2)
    prepared = CellOutbox.prepare_next_from_shard((Lane.PLAIN.value, 1))
    assert prepared is not None
    assert prepared.pk == first
    assert len(leases()) == 1
    assert CellOutbox.prepare_next_from_shard((Lane.PLAIN.value, 1)) is None
    with listening(Kind.PLAIN) as seen:
        prepared.drain_shard(flush_all=True)
    assert seen.objects == [1, 2]
    assert leases() == []
    assert CellOutbox.prepare_next_from_shard((Lane.PLAIN.value, 1)) is None
    assert leases() == []


@committed
def test_depths_come_deepest_first_and_count_parked_messages() -> None:
    put(Kind.SILENT, shard=6, obj=1)
    put(Kind.SILENT, shard=6, obj=2)
    drain_us()
    for obj in range(3):
        put(shard=5, obj=obj)
    put(shard=7)
    depths = CellOutbox.get_shard_depths_descending(limit=2)
    assert [(each["shard_identifier"], each["depth"]) for each in depths] == [(5, 3), (6, 2)]
    with pytest.raises(ValueError, match=r"^Limit 0"):
        CellOutbox.get_shard_depths_descending(limit=0)
    assert CellOutbox.get_total_outbox_count() == 1 + 3


@committed
def test_a_bounded_drain_stops_at_the_newest_message_when_it_began() -> None:
    put(Kind.ORDERED, obj=1)

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier < 5:
            put(Kind.ORDERED, obj=object_identifier + 1)

    with listening(Kind.ORDERED, act=act) as seen:
        message(Kind.ORDERED).drain_shard()
        assert seen.objects == [1]
        message(Kind.ORDERED).drain_shard(flush_all=True)
        assert seen.objects == [1, 2, 3, 4, 5]
