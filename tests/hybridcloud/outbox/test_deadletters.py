"""Dead letters are kept with their error, come back with fresh attempts, and go when people say so."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.operate import dead_letters as deadletters
from hybridcloud.outbox.operate.dead_letters import Which
from hybridcloud.outbox.store.state import CellParked

from .engine import (
    US,
    Kind,
    Worker,
    drain_us,
    failures,
    gate,
    ids,
    listening,
    make_due,
    parked,
    put,
)

pytestmark = pytest.mark.usefixtures("committed")


def _boom(**_: Any) -> None:
    raise ValueError("boom")


def _die(*objects: int, kind: Kind = Kind.LIMITED, shard: int = 1) -> list[int]:
    """Let messages fail as often as their scope allows."""
    found = [put(kind, shard=shard, obj=each) for each in objects]
    with listening(kind, act=_boom):
        for _ in range(2 * len(objects)):
            drain_us()
            make_due()
    assert set(found) <= set(parked("dead"))
    return found


def _find(**which: Any) -> list[int]:
    return [each.id for each in deadletters.find(CellOutbox, US, Which(**which), limit=100)]


def _run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("deadletters", *arguments, "--silo", "us", stdout=out)
    except CommandError as exc:
        return exc.returncode, f"{out.getvalue()}{exc}"
    return 0, out.getvalue()


def test_a_message_that_failed_too_often_is_moved_with_error_and_traceback() -> None:
    (number,) = _die(7)
    assert ids() == []
    assert failures() == []
    (letter,) = deadletters.find(CellOutbox, US, Which(), limit=100)
    assert (letter.id, letter.category, letter.object_identifier) == (number, Kind.LIMITED, 7)
    assert letter.error is not None
    assert letter.error.startswith("Traceback")
    assert letter.error.endswith("ValueError: boom\n")


def test_requeued_it_has_its_id_and_fresh_attempts() -> None:
    (number,) = _die(7)
    assert deadletters.requeue(CellOutbox, US, [number]) == 1
    assert (ids(), parked()) == ([number], [])
    with listening(Kind.LIMITED, act=_boom):
        drain_us()
    # One attempt of two: it is not dead yet.
    assert parked("dead") == []
    assert [each.attempts for each in failures()] == [1]
    make_due()
    with listening(Kind.LIMITED) as seen:
        drain_us()
    assert seen.objects == [7]
    assert ids() == parked() == []


def test_only_dead_letters_are_requeued() -> None:
    held = put(Kind.BY_OBJECT)
    with listening(Kind.BY_OBJECT, act=_boom):
        drain_us()
    assert parked("held") == [held]
    assert deadletters.requeue(CellOutbox, US, [held]) == 0
    assert deadletters.purge(CellOutbox, US, [held]) == 0
    assert parked("held") == [held]


def test_purged_it_is_gone() -> None:
    first, second = _die(1, 2, kind=Kind.LIMITED_OBJECT)
    assert deadletters.purge(CellOutbox, US, [first]) == 1
    assert parked("dead") == [second]


def test_a_newer_message_about_the_object_takes_its_place() -> None:
    _die(7)
    put(Kind.LIMITED, obj=7)
    with listening(Kind.LIMITED) as seen:
        drain_us()
    assert seen.objects == [7]
    assert parked() == []


def test_a_requeued_message_is_not_handled_after_a_newer_one() -> None:
    (old,) = _die(7)
    put(Kind.LIMITED, obj=7, payload="newer")
    deadletters.requeue(CellOutbox, US, [old])
    with listening(Kind.LIMITED) as seen:
        drain_us()
    assert [call[2] for call in seen.calls] == ["newer"]
    assert ids() == []


def test_a_message_that_may_run_once_is_no_dead_letter_while_it_runs() -> None:
    put(Kind.ONCE, obj=7)
    stop = gate("before_handler")
    with listening(Kind.ONCE) as seen, hooks.installed(stop), Worker(drain_us):
        assert stop.reached.wait(20)
        (number,) = parked("dead")
        assert _find() == []
        assert deadletters.requeue(CellOutbox, US, [number]) == 0
        assert deadletters.purge(CellOutbox, US, [number]) == 0
        stop.open.set()
    assert seen.objects == [7]
    assert parked() == ids() == []


def test_one_that_ran_and_failed_may_be_requeued() -> None:
    put(Kind.ONCE, obj=7)
    with listening(Kind.ONCE, act=_boom):
        drain_us()
    (number,) = _find()
    deadletters.requeue(CellOutbox, US, [number])
    with listening(Kind.ONCE) as seen:
        drain_us()
    assert seen.objects == [7]


def test_they_are_found_by_what_they_are() -> None:
    a, b = _die(1, 2, kind=Kind.LIMITED_OBJECT)
    (c,) = _die(1, shard=5)
    CellParked.objects.using(US).filter(pk=a).update(parked_at="2020-01-01T00:00:00Z")
    assert _find() == [a, b, c]
    assert _find(ids=(b, 999)) == [b]
    assert _find(category=Kind.LIMITED.value) == [c]
    assert _find(scope=9008) == [a, b]
    assert _find(shard=5) == [c]
    assert _find(object_identifier=1) == [a, c]
    assert _find(older_than_s=3600.0) == [a]
    assert _find(cell="us") == []


def test_the_command_lists_names_and_the_last_line_of_the_error() -> None:
    (number,) = _die(7)
    status, text = _run("list")
    assert status == 0
    assert f"us: {number} LIMITED object 7 in LIMITED:1, dead-lettered " in text
    assert text.splitlines()[0].endswith("ValueError: boom")
    assert "Traceback" not in text
    assert "Traceback" in _run("list", "--full")[1]
    document = json.loads(_run("list", "--json")[1])
    assert document["version"] == 1
    assert document["outboxes"][0]["found"][0]["category"] == "LIMITED"


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_a_dry_run_says_what_would_be_done_and_does_nothing(verb: str) -> None:
    found = _die(7)
    status, text = _run(verb, "--all", "--dry-run")
    assert status == 0
    assert "1 dead letters in hybridcloud.CellOutbox would be" in text
    assert parked("dead") == found


def test_the_command_requeues_what_a_filter_names() -> None:
    a, b = _die(1, 2, kind=Kind.LIMITED_OBJECT)
    status, text = _run("requeue", "--category", "limited_object", "--object", "2")
    assert (status, text) == (0, "us: 1 of 1 dead letters in hybridcloud.CellOutbox requeued\n")
    assert (ids(), parked("dead")) == ([b], [a])


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_the_command_asks_before_it_purges(
    answer: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _die(7)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    _run("purge", "--all")
    assert len(parked("dead")) == left
    _run("purge", "--all", "--no-input")
    assert parked("dead") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("requeue",), "No filter for deadletters requeue"),
        (("purge", "--no-input"), "No filter for deadletters purge"),
        (("list", "--category", "NOTHING"), "No category 'NOTHING'. There are: "),
        (("list", "--scope", "NOTHING"), "No scope 'NOTHING'. There are: "),
    ],
)
def test_mistakes_end_with_2_and_what_to_do(arguments: tuple[str, ...], says: str) -> None:
    status, text = _run(*arguments)
    assert status == 2
    assert says in text
