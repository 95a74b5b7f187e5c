"""A sync flush handles its own messages, waits little, and never fails its caller."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from hybridcloud import causation, hooks
from hybridcloud.outbox import CellOutbox, OutboxFlushError, outbox_context
from hybridcloud.outbox.deliver import flush, kick
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellFailure, CellLease, Level
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options

from .engine import (
    US,
    WAIT,
    Kind,
    Lane,
    Worker,
    drain_us,
    failures,
    gate,
    ids,
    leases,
    listening,
    message,
    put,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("committed")


@contextmanager
def counted_kicks() -> Iterator[list[str]]:
    """Count kicks instead of sending them to a broker."""
    kicks: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "kick", lambda _, alias: kicks.append(alias))
        yield kicks


def save(*messages: Any) -> None:
    """Commit messages with a flush."""
    write(*messages, flush=True)


def test_a_flush_handles_the_groups_of_its_own_messages_and_not_the_backlog() -> None:
    put(obj=7, payload="old")
    backlog = put(obj=8)
    with listening(Kind.PLAIN) as seen, counted_kicks() as kicks:
        save(message(obj=7, payload="new"))
    assert seen.calls == [(Kind.PLAIN, 7, "new")]
    assert ids() == [backlog]
    assert leases() == []
    assert kicks == []


def test_a_flush_of_one_save_costs_two_round_trips() -> None:
    drain_us()  # reads the options, which are cached from then on
    with listening(Kind.PLAIN), CaptureQueriesContext(connections[US]) as queries:
        save(message(obj=7))
    texts = [each["sql"] for each in queries.captured_queries]
    after = texts[next(n for n, text in enumerate(texts) if text.startswith("COMMIT")) + 1 :]
    assert len(after) == 2, after


def test_several_shards_of_one_commit_are_one_flush() -> None:
    drain_us()  # reads the options, which are cached from then on
    with listening(Kind.PLAIN) as seen, CaptureQueriesContext(connections[US]) as queries:
        save(*(message(shard=n, obj=n) for n in range(10)))
    assert sorted(seen.objects) == list(range(10))
    assert len(queries.captured_queries) <= 6
    assert ids() == []


def test_a_failing_flush_is_no_error_for_the_caller_and_the_shard_backs_off() -> None:
    def act(**_: Any) -> None:
        raise ValueError("down")

    told: list[hooks.Failed] = []

    class Watch(hooks.Hooks):
        def failed(self, fact: hooks.Failed) -> None:
            told.append(fact)

    with hooks.installed(Watch()), listening(Kind.PLAIN, act=act):
        save(message(obj=7))
    assert [fact.synchronous for fact in told] == [True]
    assert failures()[0].attempts == 1
    assert len(ids()) == 1


def test_a_flush_leaves_a_shard_in_backoff_alone() -> None:
    def act(**_: Any) -> None:
        raise ValueError("down")

    with listening(Kind.PLAIN, act=act) as seen:
        save(message(obj=7))
        save(message(obj=7))
    assert len(seen.calls) == 1
    assert len(ids()) == 2


def test_a_flush_leaves_a_switched_off_shard_alone() -> None:
    with (
        override_options({DISABLED_SHARDS: [{"scope": "PLAIN", "identifier": 1}]}),
        listening(Kind.PLAIN) as seen,
    ):
        save(message(obj=7))
    assert seen.calls == []
    assert len(ids()) == 1


def test_a_flush_waits_for_another_drainer_and_returns_when_its_messages_are_gone() -> None:
    put(obj=7)
    running = gate("before_handler")
    waiting = threading.Event()

    class Watch(hooks.Hooks):
        def before_wait(self) -> None:
            waiting.set()
            running.open.set()

    with (
        listening(Kind.PLAIN) as seen,
        hooks.installed(running),
        hooks.installed(Watch()),
        Worker(drain_us) as drainer,
    ):
        assert running.reached.wait(WAIT)
        with counted_kicks() as kicks:
            save(message(obj=7, payload="mine"))
        assert waiting.is_set()
        drainer.join(WAIT)
    assert (Kind.PLAIN, 7, "mine") in seen.calls
    assert ids() == []
    assert kicks == []


class Waits(hooks.Hooks):
    """Counts how often a flush waits for another drainer."""

    def __init__(self) -> None:
        self.count = 0

    def before_wait(self) -> None:
        self.count += 1


PAST, SOON = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
SHARD = {"shard_scope": int(Lane.BY_OBJECT), "shard_identifier": 1}


@pytest.mark.parametrize(
    ("lease", "failure", "waits"),
    [
        ({"until": PAST}, {}, False),
        ({"until": SOON, "suspect": True}, {}, False),
        ({}, {"level": Level.SHARD, "scheduled_for": SOON}, False),
        ({}, {"level": Level.OBJECT, "scheduled_for": PAST, "crashed": True}, False),
        ({"until": SOON}, {"level": Level.OBJECT, "scheduled_for": SOON, "crashed": True}, True),
    ],
    ids=["lost", "drained alone", "backoff", "crash that is due", "crash that waits"],
)
def test_a_flush_waits_where_its_messages_will_have_their_turn_soon(
    lease: dict[str, Any], failure: dict[str, Any], *, waits: bool
) -> None:
    """Where a lease or a failure keeps them for longer, it would wait in vain."""
    if lease:
        CellLease.objects.using(US).create(owner="another", token=1, **SHARD, **lease)
    if failure:
        CellFailure.objects.using(US).create(
            category=Kind.BY_OBJECT,
            object_identifier=7,
            message_id=1,
            attempts=1,
            **SHARD,
            **failure,
        )
    counted = Waits()
    with listening(Kind.BY_OBJECT) as seen, counted_kicks(), hooks.installed(counted):
        save(message(Kind.BY_OBJECT, obj=8))
    assert seen.calls == []
    assert bool(counted.count) is waits


def test_a_flush_gives_up_after_its_time_and_kicks() -> None:
    put(obj=7)
    running = gate("before_handler")
    with listening(Kind.PLAIN), hooks.installed(running), Worker(drain_us):
        assert running.reached.wait(WAIT)
        try:
            with counted_kicks() as kicks:
                save(message(obj=8))
            assert kicks == [US]
        finally:
            running.open.set()


def test_inside_a_handler_a_flush_never_waits_but_kicks() -> None:
    with listening(Kind.PLAIN) as seen, counted_kicks() as kicks:
        with causation.inside(None):
            save(message(obj=7))
        assert seen.calls == []
        assert kicks == [US]


def test_an_ordered_scopes_flush_keeps_the_order_of_its_shard() -> None:
    put(Kind.ORDERED, obj=1)
    with listening(Kind.ORDERED) as seen:
        save(message(Kind.ORDERED, obj=2))
    assert seen.objects == [1, 2]


def test_an_ordered_scopes_flush_far_behind_kicks_instead() -> None:
    write(*(message(Kind.ORDERED, obj=n) for n in range(flush.MOST_AHEAD + 5)))
    with listening(Kind.ORDERED) as seen, counted_kicks() as kicks:
        save(message(Kind.ORDERED, obj=999))
    assert seen.calls == []
    assert kicks == [US]
    assert leases() == []


def test_kick_mode_wakes_a_drainer_and_cron_mode_waits(settings: Any) -> None:
    with listening(Kind.PLAIN) as seen, counted_kicks() as kicks:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "kick"}
        save(message(obj=1))
        assert kicks == [US]
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "cron"}
        save(message(obj=1))
        assert kicks == [US]
    assert seen.calls == []
    assert len(ids()) == 2


def test_a_broker_that_is_down_does_not_reach_the_caller() -> None:
    captured: list[hooks.Captured] = []

    class Watch(hooks.Hooks):
        def captured(self, fact: hooks.Captured) -> None:
            captured.append(fact)

    def broken(*_: Any) -> None:
        raise ConnectionError("no broker")

    with pytest.MonkeyPatch.context() as patch, hooks.installed(Watch()):
        patch.setattr(kick, "kicker", broken)
        kick._throttled._sent.clear()
        with causation.inside(None):
            save(message(obj=7))
    assert [fact.where for fact in captured] == ["kick"]
    assert len(ids()) == 1


def test_where_a_test_asks_for_it_a_flush_raises_the_cause() -> None:
    def act(**_: Any) -> None:
        raise ValueError("down")

    with (
        listening(Kind.PLAIN, act=act),
        flush.raising_failures(),
        pytest.raises(OutboxFlushError, match=r"^ValueError: down - while handling"),
        outbox_context(transaction.atomic(using=US)),
    ):
        message(obj=7).save(using=US)


def test_the_engine_sees_what_was_committed_whatever_the_sessions_default_is() -> None:
    """Under repeatable read a flush, which claims and reads in one transaction, could read what was acknowledged."""
    with connections[US].cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
    try:
        assert Engine(CellOutbox, US).results(["SHOW transaction_isolation"], {}) == [
            [("read committed",)]
        ]
    finally:
        with connections[US].cursor() as cursor:
            cursor.execute("RESET default_transaction_isolation")
