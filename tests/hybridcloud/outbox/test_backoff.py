"""Rule 4: what failed waits, by the scope's policy, and nothing else does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hybridcloud import hooks
from hybridcloud.outbox import OutboxFlushError, RetryLater
from hybridcloud.outbox.store.state import CellFailure, CellParked

from .engine import (
    US,
    Kind,
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

pytestmark = [pytest.mark.rule(4), pytest.mark.usefixtures("committed")]


def failing(*objects: int) -> Any:
    """Make a receiver that fails for some objects."""

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier in objects:
            raise ValueError(f"object {object_identifier} is broken")

    return act


def test_a_failure_is_recorded_with_its_cause_and_the_message_is_kept() -> None:
    message_id = put(obj=7)
    with listening(Kind.PLAIN, act=failing(7)):
        drain_us()
    (failure,) = failures()
    assert (failure.category, failure.object_identifier) == (Kind.PLAIN, 7)
    assert (failure.message_id, failure.attempts, failure.level) == (message_id, 1, 0)
    assert failure.last_error == "ValueError: object 7 is broken"
    assert "in act" in failure.last_traceback
    assert ids() == [message_id]
    assert leases() == []


def test_what_succeeded_before_the_failure_stays_acknowledged() -> None:
    for obj in (1, 2, 3):
        put(obj=obj)
    with listening(Kind.PLAIN, act=failing(2)) as seen:
        drain_us()
    assert seen.objects == [1, 2]
    assert len(ids()) == 2


def test_a_shard_in_backoff_is_left_alone_and_others_are_not() -> None:
    put(shard=1, obj=7)
    with listening(Kind.PLAIN, act=failing(7)) as seen:
        drain_us()
        put(shard=2, obj=8)
        drain_us()
        drain_us()
    assert seen.objects == [7, 8]


def test_backoff_doubles_to_an_hour_with_jitter_and_new_messages_do_not_shorten_it() -> None:
    put(obj=7)
    delays: list[float] = []
    with listening(Kind.PLAIN, act=failing(7)) as seen:
        for attempt in range(1, 15):
            drain_us()
            put(obj=7)
            put(obj=8)
            drain_us()
            assert seen.objects.count(7) == attempt
            (failure,) = failures()
            assert failure.attempts == attempt
            delays.append(failure.last_delay().total_seconds())
            make_due()
    for attempt, delay in enumerate(delays):
        full = min(3600, 2**attempt)
        assert 0.79 * full <= delay <= full
    assert len({delay / min(3600, 2**n) for n, delay in enumerate(delays)}) > 1


def test_a_success_forgets_the_failure_and_the_next_one_starts_again() -> None:
    put(obj=7)
    broken = True

    def act(**_: Any) -> None:
        if broken:
            raise ValueError

    with listening(Kind.PLAIN, act=act):
        drain_us()
        make_due()
        drain_us()
        assert failures()[0].attempts == 2
        broken = False
        make_due()
        drain_us()
        assert failures() == []
        broken = True
        put(obj=7)
        drain_us()
        assert failures()[0].attempts == 1


def test_attempts_start_again_when_another_group_fails() -> None:
    put(obj=1)
    put(obj=2)
    broken = {1}

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier in broken:
            raise ValueError

    with listening(Kind.PLAIN, act=act):
        drain_us()
        make_due()
        drain_us()
        assert failures()[0].attempts == 2
        broken = {2}
        make_due()
        drain_us()
    (failure,) = failures()
    assert (failure.object_identifier, failure.attempts) == (2, 1)


def test_newer_messages_of_a_failing_group_do_not_reset_its_attempts() -> None:
    put(obj=7)
    with listening(Kind.PLAIN, act=failing(7)):
        drain_us()
        put(obj=7)
        make_due()
        drain_us()
    assert failures()[0].attempts == 2


def test_a_poisoned_object_costs_one_row() -> None:
    for n in range(5):
        put(obj=7, payload=n)
    with listening(Kind.PLAIN, act=failing(7)):
        drain_us()
    assert len(ids()) == 1


@pytest.mark.parametrize("kind", [Kind.BY_OBJECT, Kind.ORDERED_BY_OBJECT])
def test_with_block_object_only_the_object_waits(kind: Kind) -> None:
    broken = put(kind, obj=7)
    put(kind, obj=8)
    with listening(kind, act=failing(7)) as seen:
        drain_us()
        later = put(kind, obj=7)
        put(kind, obj=9)
        drain_us()
        assert seen.objects == [7, 8, 9]
        assert ids() == []
        assert parked("held") == ([later] if kind is Kind.BY_OBJECT else [broken, later])
        make_due()
        drain_us()
        assert seen.objects == [7, 8, 9, 7]
        assert failures()[0].attempts == 2
    make_due()
    with listening(kind) as seen:
        drain_us()
    expected = [later] if kind is Kind.BY_OBJECT else [broken, later]
    assert [m["message_id"] for m in seen.messages] == expected
    assert ids() == parked() == []
    assert failures() == []


def test_with_block_category_the_category_waits_and_the_others_go_on() -> None:
    put(Kind.BY_CATEGORY, obj=7)
    put(Kind.BY_CATEGORY, obj=8)
    put(Kind.BY_CATEGORY_OTHER, obj=9)
    both = (Kind.BY_CATEGORY, Kind.BY_CATEGORY_OTHER)
    with listening(*both, act=failing(7)) as seen:
        drain_us()
        assert seen.objects == [7, 9]
        assert len(parked("held")) == 2
        make_due()
        drain_us()
        assert seen.objects == [7, 9, 7]
    make_due()
    with listening(*both) as seen:
        drain_us()
    assert seen.objects == [7, 8]
    assert ids() == parked() == []


def test_max_attempts_end_in_the_dead_letters_with_error_and_traceback() -> None:
    message_id = put(Kind.LIMITED, obj=7)
    put(Kind.LIMITED, obj=8)
    with listening(Kind.LIMITED, act=failing(7)) as seen:
        drain_us()
        assert parked() == []
        make_due()
        drain_us()
    assert seen.objects == [7, 7, 8]
    row = CellParked.objects.using(US).get()
    assert (row.id, row.reason) == (message_id, "dead")
    assert "ValueError: object 7 is broken" in (row.error or "")
    assert failures() == []
    assert ids() == []


def test_a_newer_message_of_a_coalescing_scope_supersedes_its_dead_letter() -> None:
    put(Kind.LIMITED_OBJECT, obj=7)
    with listening(Kind.LIMITED_OBJECT, act=failing(7)):
        drain_us()
        make_due()
        drain_us()
    assert len(parked("dead")) == 1
    put(Kind.LIMITED_OBJECT, obj=7)
    with listening(Kind.LIMITED_OBJECT) as seen:
        drain_us()
    assert len(seen.calls) == 1
    assert parked() == []


def test_called_directly_a_drain_raises_the_cause_first_after_it_recorded_the_failure() -> None:
    message_id = put(obj=7)
    direct = message(obj=7)
    with (
        listening(Kind.PLAIN, act=failing(7)),
        pytest.raises(OutboxFlushError, match=r"^ValueError: object 7 is broken - while") as caught,
    ):
        direct.drain_shard()
    assert caught.value.outbox.pk == message_id
    assert isinstance(caught.value.cause, ValueError)
    assert failures()[0].attempts == 1
    assert leases() == []


def test_a_failure_is_told_with_what_failed() -> None:
    facts: list[hooks.Failed] = []

    class Watch(hooks.Hooks):
        def failed(self, fact: hooks.Failed) -> None:
            facts.append(fact)

    message_id = put(obj=7)
    with hooks.installed(Watch()), listening(Kind.PLAIN, act=failing(7)):
        drain_us()
    (fact,) = facts
    assert (fact.message_id, fact.category, fact.attempts) == (message_id, Kind.PLAIN, 1)
    assert isinstance(fact.error, ValueError)


def test_retry_later_holds_only_its_own_message_in_a_block_shard_scope() -> None:
    write(message(obj=1), message(obj=2))

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 1:
            raise RetryLater(timedelta(hours=1))

    with listening(Kind.PLAIN, act=act) as seen:
        drain_us()
    assert seen.objects == [1, 2]
    assert CellFailure.objects.using(US).count() == 0
