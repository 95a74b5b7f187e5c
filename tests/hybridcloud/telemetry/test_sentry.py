"""Failures reach the error tracker, with what is needed to find them; without it nobody would look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from hybridcloud import hooks
from tests.hybridcloud.outbox.engine import Kind, Lane, drain_us, listening, make_due, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentry_sdk.envelope import Envelope


class Kept(Transport):
    """Keeps events instead of sending them."""

    def __init__(self) -> None:
        super().__init__({"dsn": "http://key@127.0.0.1/1"})
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture(name="events")
def _events() -> Iterator[list[Any]]:
    kept = Kept()
    client = sentry_sdk.Client(
        dsn="http://key@127.0.0.1/1",
        transport=kept,
        default_integrations=False,
        auto_enabling_integrations=False,
    )
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(client)
        yield kept.events
    client.close()


def fail(**_: Any) -> None:
    raise ZeroDivisionError("broken handler")


def failure(*, attempts: int = 1, **more: Any) -> hooks.Failed:
    """Return the fact of a control message that failed."""
    given: dict[str, Any] = {
        "outbox": "hybridcloud.ControlOutbox",
        "shard": ("eu", Lane.PLAIN.value, 42),
        "scope": Lane.PLAIN.value,
        "category": Kind.PLAIN.value,
        "object_identifier": 7,
        "message_id": 99,
        "attempts": attempts,
        "crashed": False,
        "dead": False,
        "error": ZeroDivisionError("broken handler"),
        "synchronous": True,
        **more,
    }
    return hooks.Failed(**given)


@pytest.mark.django_db(transaction=True)
def test_what_a_handler_raised_is_captured_with_category_scope_shard_and_object(
    events: list[Any],
) -> None:
    put(Kind.PLAIN, 42, 7, {"secret": "sauce"})
    with listening(Kind.PLAIN, act=fail):
        drain_us()
    (event,) = events
    assert event["exception"]["values"][-1]["value"] == "broken handler"
    assert event["tags"] == {
        "outbox.category": "PLAIN",
        "outbox.scope": "PLAIN",
        "outbox.shard": "42",
        "outbox.object": "7",
        "synchronous": "0",
    }
    assert event["fingerprint"] == ["hybridcloud.outbox", "PLAIN", "ZeroDivisionError"]
    assert event["contexts"]["outbox"]["attempts"] == 1


@pytest.mark.django_db(transaction=True)
def test_a_failure_that_goes_on_is_captured_when_its_attempts_have_doubled(
    events: list[Any],
) -> None:
    put(Kind.PLAIN, 42, 7)
    with listening(Kind.PLAIN, act=fail):
        for _ in range(5):
            drain_us()
            make_due()
    assert [event["contexts"]["outbox"]["attempts"] for event in events] == [1, 2, 4]


def test_a_dead_letter_is_captured_whatever_its_attempts(events: list[Any]) -> None:
    hooks.tell(hooks.active.failed, failure(attempts=3))
    hooks.tell(hooks.active.failed, failure(attempts=3, dead=True))
    assert [event["contexts"]["outbox"]["dead"] for event in events] == [True]


def test_a_shard_of_control_is_named_with_its_cell(events: list[Any]) -> None:
    hooks.tell(hooks.active.failed, failure())
    assert events[0]["tags"]["outbox.shard"] == "eu:42"
    assert events[0]["tags"]["synchronous"] == "1"


def test_a_lost_worker_is_captured_in_words(events: list[Any]) -> None:
    hooks.tell(hooks.active.failed, failure(error=None, crashed=True))
    assert events[0]["message"] == "Worker lost while it handled PLAIN"
    assert events[0]["level"] == "error"
    assert events[0]["tags"]["outbox.object"] == "7"


def test_a_swallowed_exception_is_captured_with_its_step(events: list[Any]) -> None:
    fact = hooks.Captured(OSError("no broker"), "kick", {"outbox": "hybridcloud.CellOutbox"})
    hooks.tell(hooks.active.captured, fact)
    (event,) = events
    assert event["exception"]["values"][-1]["type"] == "OSError"
    assert event["tags"] == {"hybridcloud.step": "kick", "outbox": "hybridcloud.CellOutbox"}


def test_tags_of_one_failure_do_not_stay_for_the_next_event(events: list[Any]) -> None:
    hooks.tell(hooks.active.failed, failure())
    sentry_sdk.capture_message("something else")
    assert "outbox.category" not in events[1].get("tags", {})


def test_a_project_without_sentry_is_not_troubled() -> None:
    hooks.tell(hooks.active.failed, failure())
