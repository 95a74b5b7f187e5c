"""A deep shard of few objects: one call an object and pass, and nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hybridcloud.outbox import CellOutbox

from .engine import US, Kind, Worker, drain_us, ids, listening, message, put, tune

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


def test_a_deep_shard_calls_each_object_once_a_pass_and_last_with_its_newest_payload() -> None:
    fill(n % 2 for n in range(10 * SHARE))
    with listening(Kind.PLAIN) as seen:
        drain_us()
    calls = [(obj, payload) for _, obj, payload in seen.calls]
    assert calls == [(obj, SHARE * (part + 1) - 2 + obj) for part in range(10) for obj in range(2)]
    assert ids() == []


def test_scopes_that_do_not_coalesce_lose_nothing() -> None:
    fill((0 for _ in range(3 * SHARE)), Kind.ORDERED)
    with listening(Kind.ORDERED) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == list(range(3 * SHARE))


@pytest.mark.rule(1)
def test_what_is_written_meanwhile_is_handled_again() -> None:
    fill(0 for _ in range(SHARE))

    def act(*, payload: Any, **_: Any) -> None:
        if payload != "late":
            with Worker(lambda: put(obj=0, payload="late")):
                pass

    with listening(Kind.PLAIN, act=act) as seen:
        drain_us()
    assert [payload for *_, payload in seen.calls] == [SHARE - 1, "late"]
    assert ids() == []
