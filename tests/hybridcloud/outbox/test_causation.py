"""Rule 9: causation travels, and a loop stops at a limit, in the dead letters, with its chain."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest
from django.db import transaction

from hybridcloud import causation, hooks
from hybridcloud.conf import settings
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.store.state import CellParked

from .engine import US, Kind, drain_us, failures, ids, listening, message, put, write

pytestmark = [pytest.mark.rule(9), pytest.mark.usefixtures("committed")]


def again(*, object_identifier: int, **_: Any) -> None:
    """Write the message that makes this handler run once more: the loop of two handlers."""
    with outbox_context(transaction.atomic(using=US), flush=False):
        message(obj=object_identifier + 1).save(using=US)


def test_a_message_written_by_a_handler_carries_what_caused_it() -> None:
    put(obj=1)
    with listening(Kind.PLAIN, act=lambda **_: message(Kind.SILENT).save(using=US)):
        drain_us()
    row = CellParked.objects.using(US).get()
    assert row.headers["depth"] == 1
    assert row.headers["chain"] == ["PLAIN"]


def test_a_message_that_nothing_caused_carries_no_headers() -> None:
    put(obj=1)
    assert CellOutbox.objects.using(US).get().headers is None


def test_a_loop_stops_at_the_limit_in_the_dead_letters_with_its_chain() -> None:
    put(obj=1)
    with listening(Kind.PLAIN, act=again) as seen:
        drain_us()
    limit = settings().causation_limit
    assert len(seen.calls) == limit
    assert ids() == []
    row = CellParked.objects.using(US).get()
    assert row.reason == "dead"
    assert (row.error or "").count("PLAIN >") >= limit - 1
    assert failures() == []


def test_a_long_chain_keeps_its_correlation() -> None:
    put(obj=1)
    seen: set[str] = set()

    def act(*, object_identifier: int, **_: Any) -> None:
        known = causation.current()
        assert known is not None
        assert known.depth == object_identifier
        seen.add(known.correlation_id)
        if object_identifier < 5:
            again(object_identifier=object_identifier)

    with listening(Kind.PLAIN, act=act):
        drain_us()
    assert len(seen) == 1


def test_what_is_no_handler_is_outside_of_all_chains() -> None:
    """A row of handlers leaves one chain for the next; what the engine does between is in none."""
    inside: list[bool] = []

    class Looks(hooks.Hooks):
        def before_ack(self, _: object) -> None:
            inside.append(causation.is_inside())

    write(message(Kind.SINGLE, obj=1), message(Kind.SINGLE, obj=2), message(Kind.ORDERED, obj=3))
    with listening(Kind.SINGLE, Kind.ORDERED), hooks.installed(Looks()):
        drain_us()
    assert inside == [False, False, False]
    assert not causation.is_inside()


def test_a_failure_is_told_outside_of_all_chains() -> None:
    inside: list[bool] = []

    class Looks(hooks.Hooks):
        def failed(self, _: object) -> None:
            inside.append(causation.is_inside())

    write(message(Kind.ORDERED))

    def act(**_: Any) -> None:
        raise LookupError

    with listening(Kind.ORDERED, act=act), hooks.installed(Looks()):
        drain_us()
    assert inside == [False]


def test_what_a_handler_left_running_keeps_its_own_chain() -> None:
    contexts: list[contextvars.Context] = []
    first, second = write(message(Kind.ORDERED, obj=1), message(Kind.ORDERED, obj=2))

    def act(**_: Any) -> None:
        contexts.append(contextvars.copy_context())

    with listening(Kind.ORDERED, act=act):
        drain_us()
    found = [each.run(causation.current) for each in contexts]
    assert [each and each.correlation_id for each in found] == [
        f"hybridcloud.CellOutbox:{first}",
        f"hybridcloud.CellOutbox:{second}",
    ]
