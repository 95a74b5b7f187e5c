"""A deep shard of few objects: one call an object, by the newest message, and nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain import read as reading

from .engine import US, Kind, Worker, drain_us, ids, listening, message, put, tune
from .wire import traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.usefixtures("committed")
SHARE = 20


@pytest.fixture(autouse=True)
def _small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(messages_per_pass=SHARE)


def fill(objects: Iterable[int], kind: Kind = Kind.PLAIN) -> None:
    CellOutbox.objects.using(US).bulk_create(
        [message(kind, obj=obj, payload=n) for n, obj in enumerate(objects)]
    )


def test_a_deep_shard_calls_each_object_once_with_its_newest_payload() -> None:
    fill(n % 2 for n in range(10 * SHARE))
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert [(obj, payload) for _, obj, payload in seen.calls] == [(0, 198), (1, 199)]
    assert ids() == []


def test_objects_behind_the_pass_wait_for_the_next_one() -> None:
    fill([*(n % 2 for n in range(SHARE)), 7, 0, 8])
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [0, 1, 7, 8]
    assert ids() == []


def test_distinct_objects_are_not_looked_up_further() -> None:
    fill(range(3 * SHARE))
    with listening(Kind.PLAIN) as seen, traffic(US) as passed:
        drain_us()
    assert len(seen.calls) == 3 * SHARE
    fill(n % 2 for n in range(3 * SHARE))
    with listening(Kind.PLAIN), traffic(US) as fewer:
        drain_us()
    assert fewer.round_trips < passed.round_trips


def test_scopes_that_do_not_coalesce_lose_nothing() -> None:
    fill((0 for _ in range(3 * SHARE)), Kind.ORDERED)
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == list(range(3 * SHARE))


@pytest.mark.rule(1)
def test_what_is_written_meanwhile_is_handled_again() -> None:
    fill(0 for _ in range(3 * SHARE))

    def act(*, payload: Any, **_: Any) -> None:
        if payload != "late":
            with Worker(lambda: put(obj=0, payload="late")):
                pass

    with listening(Kind.PLAIN, act=act) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == [3 * SHARE - 1, "late"]
    assert ids() == []


def test_a_message_that_is_parked_meanwhile_is_not_passed_by() -> None:
    """One that is delayed between the two readings must go with its group, as in any pass."""
    from datetime import timedelta

    fill(0 for _ in range(3 * SHARE))
    newest = ids()[-1]
    delayed = message(obj=0, payload="delayed")
    delayed.delay = timedelta(hours=1)

    class Parks(hooks.Hooks):
        def before_ack(self, acknowledged: Any) -> None:
            acknowledgements.append(list(acknowledged))

    acknowledgements: list[list[int]] = []
    original = reading.shards_of

    def between(*arguments: Any) -> Any:
        if delayed.pk is None:
            with Worker(lambda: delayed.save(using=US)):
                pass
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "shards_of", between)
        with listening(Kind.PLAIN), hooks.installed(Parks()):
            drain_us()
    assert newest not in acknowledgements[0]
    assert ids() == []
