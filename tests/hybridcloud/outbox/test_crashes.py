"""Rule 8: a crash counts, against what was running only."""

from __future__ import annotations

import pytest

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver.tick import tick
from hybridcloud.outbox.drain.due import FIRST, find_due_shards
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellLease, CellParked
from hybridcloud.outbox.store.switches import Switches
from hybridcloud.raised import DrainerStopped

from .engine import (
    US,
    Child,
    Kind,
    Lane,
    drain_us,
    failures,
    ids,
    leases,
    listening,
    make_due,
    message,
    parked,
    put,
    write,
)

pytestmark = [pytest.mark.rule(8), pytest.mark.usefixtures("committed")]


def expire() -> None:
    """Let all leases lapse now, as they do by themselves after 15 s."""
    CellLease.objects.using(US).update(until="2020-01-01T00:00:00Z")


def crash(kind: Kind, obj: int) -> None:
    """Kill a drainer while it handles an object."""
    with Child("drain", stop_at="handler", object=obj, kinds=[kind.name]) as child:
        child.expect("stopped")
        child.kill()
    expire()


def test_a_first_crash_makes_the_shard_suspect_and_is_no_attempt() -> None:
    put(obj=7)
    crash(Kind.PLAIN, 7)
    (lease,) = leases()
    assert lease.handling is None
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [7]
    assert failures() == []
    assert leases() == []


def test_a_suspect_shard_is_marked_before_each_handler_and_acknowledged_singly() -> None:
    first, second = put(obj=7), put(obj=8)
    crash(Kind.PLAIN, 7)
    marks: list[int | None] = []
    acks: list[list[int]] = []

    class Watch(hooks.Hooks):
        def before_handler(self, call: hooks.HandlerCall) -> None:
            marks.append(leases()[0].handling)

        def before_ack(self, ids: list[int]) -> None:
            if ids:
                acks.append(list(ids))

    with listening(Kind.PLAIN), hooks.installed(Watch()):
        drain_us()
    assert marks == [first, second]
    assert acks == [[first], [second]]
    assert leases() == []


def test_a_crash_in_a_suspect_shard_is_an_attempt_of_what_was_running() -> None:
    put(shard=1, obj=7)
    put(shard=1, obj=8)
    put(shard=2, obj=9)
    crash(Kind.PLAIN, 7)
    crash(Kind.PLAIN, 7)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    (failure,) = failures()
    assert (failure.object_identifier, failure.attempts, failure.crashed) == (7, 1, True)
    assert "Worker lost while it handled message" in failure.last_error
    assert seen.objects in ([9], []), "shard 1 waits for its next try"
    assert ids(shard=1)


def test_after_a_crash_the_group_is_tried_alone_and_one_crash_is_one_attempt() -> None:
    put(shard=1, obj=7)
    for _ in range(2):
        crash(Kind.PLAIN, 7)
    drain_us()
    for attempts in (2, 3):
        make_due()
        crash(Kind.PLAIN, 7)
        with listening(Kind.PLAIN) as seen:
            drain_us()
        assert seen.calls == []
        assert [failure.attempts for failure in failures()] == [attempts]


def crashed_twice(kind: Kind, obj: int) -> None:
    """Leave a recorded crash of an object, which waits for its next try."""
    put(kind, obj=obj)
    for _ in range(2):
        crash(kind, obj)
    drain_us()


@pytest.mark.parametrize("heed", [True, False])
def test_a_shard_whose_crash_is_due_is_claimed_to_be_drained_alone_and_not_otherwise(
    *, heed: bool
) -> None:
    """Claimed with others it would be held and not drained: by busy drainers again and again."""
    crashed_twice(Kind.BY_OBJECT, 7)
    put(Kind.BY_OBJECT, obj=8)
    put(Kind.BY_OBJECT, shard=2)
    put(Kind.BY_OBJECT, obj=7)
    if heed:
        make_due()
        assert find_due_shards(CellOutbox, alias=US, limit=10) == [ShardKey(Lane.BY_OBJECT, 2)]
    ill, well = (ShardKey(int(Lane.BY_OBJECT), shard) for shard in (1, 2))
    due = Leases(Engine(CellOutbox, US))
    assert due.claim_due(after=FIRST, most=10, switches=Switches(), heed_backoff=heed)
    assert due.keys == [well]
    due.release()
    known = Leases(due.engine)
    assert known.claim_known([ill, well], heed_backoff=heed)
    assert known.keys == [well]
    assert not Leases(due.engine).claim_known([ill], heed_backoff=heed)
    alone = Leases(due.engine)
    assert alone.claim_suspect(switches=Switches(), heed_backoff=heed)
    assert (alone.keys, alone.suspect) == ([ill], True)


def test_while_a_crashed_object_waits_the_rest_of_its_shard_is_flushed() -> None:
    crashed_twice(Kind.BY_OBJECT, 7)
    with listening(Kind.BY_OBJECT) as seen:
        write(message(Kind.BY_OBJECT, obj=8), flush=True)
        assert seen.objects == [8]
        write(message(Kind.BY_OBJECT, obj=7), flush=True)
    assert seen.objects == [8]
    assert [failure.attempts for failure in failures()] == [1]


def test_crashes_end_in_the_dead_letters_where_max_attempts_says_so() -> None:
    message_id = put(Kind.LIMITED, obj=7)
    after = put(Kind.LIMITED, obj=8)
    for _ in range(2):
        crash(Kind.LIMITED, 7)
    drain_us()
    make_due()
    crash(Kind.LIMITED, 7)
    with listening(Kind.LIMITED) as seen:
        drain_us()
    assert seen.objects == [8]
    assert after not in ids()
    row = CellParked.objects.using(US).get()
    assert (row.id, row.reason) == (message_id, "dead")
    assert "Worker lost" in (row.error or "")


def test_the_other_shards_of_a_killed_pass_count_no_attempt() -> None:
    for shard in range(5):
        put(shard=shard, obj=shard)
    crash(Kind.PLAIN, 2)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert sorted(seen.objects) == [0, 1, 2, 3, 4]
    assert failures() == []


def test_a_crash_at_object_level_parks_the_object_and_the_shard_goes_on() -> None:
    broken = put(Kind.BY_OBJECT, obj=7)
    put(Kind.BY_OBJECT, obj=8)
    for _ in range(2):
        crash(Kind.BY_OBJECT, 7)
    with listening(Kind.BY_OBJECT) as seen:
        drain_us()
    assert seen.objects == [8]
    assert parked("held") == [broken]
    make_due()
    with listening(Kind.BY_OBJECT) as seen:
        drain_us()
        drain_us()
    assert seen.objects == [7]
    assert failures() == []


def test_a_tick_deletes_lapsed_leases_of_empty_shards_but_not_evidence() -> None:
    for shard, handling in ((1, None), (2, 99)):
        CellLease.objects.using(US).create(
            shard_scope=9000,
            shard_identifier=shard,
            owner="gone",
            token=1,
            until="2020-01-01T00:00:00Z",
            handling=handling,
        )
    tick(Engine(CellOutbox, US))
    assert [lease.shard_identifier for lease in leases()] == [2]


def test_an_orderly_stop_gives_the_shards_back_and_is_no_crash() -> None:
    put(Kind.ORDERED, obj=1)
    put(Kind.ORDERED, obj=2)

    def act(*, object_identifier: int, **_: object) -> None:
        if object_identifier == 2:
            raise DrainerStopped

    with listening(Kind.ORDERED, act=act), pytest.raises(DrainerStopped):
        drain_us()
    assert leases() == []
    assert failures() == []
    assert len(ids()) == 1
