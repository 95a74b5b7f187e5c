"""Rule 1: what is deleted is exactly what was read before the handler ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from hybridcloud import hooks
from hybridcloud.outbox import outbox_context

from .engine import US, Kind, Worker, drain_us, gate, ids, listening, message, put, write

if TYPE_CHECKING:
    from threading import Event

pytestmark = [pytest.mark.rule(1), pytest.mark.usefixtures("committed")]


def _commit_when_told(kind: Kind, obj: int, inserted: Event, commit: Event) -> None:
    """Draw an id by an INSERT, and commit it only when told."""
    with transaction.atomic(using=US):
        with outbox_context(flush=False):
            message(kind, obj=obj, payload="late").save(using=US)
        inserted.set()
        assert commit.wait(20)


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.ORDERED])
def test_a_lower_id_committed_while_a_handler_runs_is_still_delivered(kind: Kind) -> None:
    from threading import Event

    inserted, commit = Event(), Event()
    with Worker(lambda: _commit_when_told(kind, 7, inserted, commit)) as writer:
        assert inserted.wait(20)
        late_is_lower_than = put(kind, obj=7, payload="early")

        def act(*, payload: Any, **_: Any) -> None:
            if payload == "early":
                commit.set()
                writer.join(20)

        with listening(kind, act=act) as seen:
            drain_us()
    assert [call[2] for call in seen.calls] == ["early", "late"]
    assert min(m["message_id"] for m in seen.messages) < late_is_lower_than
    assert ids() == []


def test_a_write_during_handling_survives_and_is_handled_again() -> None:
    put(obj=7, payload="first")

    def act(*, payload: Any, **_: Any) -> None:
        if payload == "first":
            with Worker(lambda: put(obj=7, payload="second")):
                pass

    with listening(Kind.PLAIN, act=act) as seen:
        drain_us()
    assert [call[2] for call in seen.calls] == ["first", "second"]
    assert ids() == []


def test_the_fetch_sees_what_the_last_owner_deleted() -> None:
    """A claimer that was slow between claim and fetch redelivers nothing stale."""
    put(obj=7)
    stalled = gate("after_claim")
    with listening(Kind.PLAIN) as seen, hooks.installed(stalled), Worker(drain_us):
        assert stalled.reached.wait(20)
        with connections[US].cursor() as cursor:
            cursor.execute("DELETE FROM hybridcloud_celloutbox")
        stalled.open.set()
    assert seen.calls == []


def test_newest_payload_wins_and_older_messages_go_with_it() -> None:
    write(*(message(obj=7, payload=n) for n in range(1)))
    for n in range(1, 5):
        put(obj=7, payload=n)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.calls == [(Kind.PLAIN, 7, 4)]
    assert ids() == []


def test_events_are_never_coalesced_and_come_in_order() -> None:
    for n in range(5):
        put(Kind.ORDERED, obj=7, payload=n)
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert [call[2] for call in seen.calls] == [0, 1, 2, 3, 4]
