"""`manage.py backfill`: what operators see and do."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fixtures.acme.models import Organization
from hybridcloud.backfill import process_outbox_backfill_batch
from hybridcloud.backfill.status import status_of
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .filling import execute, fill_organizations, fill_tokens, state, written

pytestmark = pytest.mark.django_db
KEY = "outbox_replication.acme_organization"
ON = {f"{KEY}.replication_version": 1}


def _run(*arguments: str, silo: str | None = "us") -> tuple[int, str]:
    out = StringIO()
    more = [] if silo is None else ["--silo", silo]
    try:
        call_command("backfill", *arguments, *more, stdout=out)
    except CommandError as exc:
        return exc.returncode, f"{out.getvalue()}{exc}"
    return 0, out.getvalue()


def _line(text: str, model: str = "acme.Organization ") -> list[str]:
    return next(line for line in text.splitlines() if model in line).split()


def _step(size: int) -> None:
    process_outbox_backfill_batch(Organization, size, force_synchronous=True)


def _state() -> str:
    with assume_silo(SiloMode.CELL, cell="us"):
        return status_of(Organization).state


def test_status_shows_every_model_of_every_silo() -> None:
    status, text = _run("status", silo=None)
    assert status == 0
    assert text.splitlines()[0].split()[:5] == ["SILO", "MODEL", "STATE", "VERSION", "TARGET"]
    silos = {line.split()[0] for line in text.splitlines()[1:]}
    assert silos == {"control", "us", "eu"}
    assert _line(text)[:6] == ["us", "acme.Organization", "off", "1", "0", "of"]


def test_status_tells_progress_by_id_and_by_rows_rate_and_end() -> None:
    fill_organizations([1, 2, 3, 100])
    _step(2)
    with override_options(ON):
        document = json.loads(_run("status", "--json")[1])
    found = next(each for each in document["backfills"] if each["model"] == "acme.Organization")
    assert document["version"] == 1
    assert found["state"] == "walking"
    assert (found["low_bound"], found["upto"], found["rows"], found["rows_expected"]) == (
        3,
        100,
        2,
        4,
    )
    assert found["progress_by_id"] == pytest.approx(0.02)
    assert found["progress_by_rows"] == 0.5
    assert found["messages_per_minute"] == 2
    assert found["eta_s"] > 0
    assert "50%" in _run("status")[1]


def test_each_state_has_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_organizations([1, 2, 3])
    assert _state() == "off"
    with override_options(ON):
        assert _state() == "due"
        _step(2)
        assert _state() == "walking"
        with override_options({"hybridcloud.backfill.paused": True}):
            assert _state() == "paused"
    assert _state() == "stopped"
    _step(2)
    assert _state() == "done"
    monkeypatch.setattr(Organization, "replication_version", 2)
    assert _state() == "off"
    with override_options(ON):
        assert _state() == "done"
        execute("UPDATE hybridcloud_backfillcursor SET version = 1, writers = '[\"1/1\"]'")
        assert _state() == "fenced"


def test_run_sync_goes_to_the_codes_version_whatever_the_options_say() -> None:
    fill_organizations(range(1, 8))
    status, text = _run("run", "acme.Organization", "--sync")
    assert (status, text) == (0, "us: acme.Organization is done, 7 rows, 7 messages\n")
    assert written() == list(range(1, 8))
    assert _run("run", "acme_organization", "--sync")[1].endswith("0 rows, 0 messages\n")


def test_run_takes_every_cell_of_the_process() -> None:
    fill_organizations([1])
    fill_organizations([2], alias="cell_eu")
    status, text = _run("run", "acme.Organization", "--sync", "--json", silo=None)
    assert status == 0
    assert [(each["silo"], each["rows"]) for each in json.loads(text)["backfills"]] == [
        ("us", 1),
        ("eu", 1),
    ]


def test_run_heeds_the_option_and_says_which() -> None:
    fill_organizations([1])
    status, text = _run("run", "acme.Organization")
    assert status == 3
    assert (
        "outbox_replication.acme_organization.replication_version allows acme.Organization only up to version 0"
        in text
    )
    with override_options(ON):
        assert _run("run", "acme.Organization")[0] == 0
    assert written() == [1]


def test_run_goes_on_in_its_pace_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_organizations(range(1, 8))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        execute("UPDATE hybridcloud_backfillcursor SET recent = '{}'")
        execute("DELETE FROM hybridcloud_celloutbox")

    monkeypatch.setattr("hybridcloud.management.commands.backfill.sleep", wait)
    with override_options({**ON, "hybridcloud.backfill.per_minute": 3}):
        status, text = _run("run", "acme.Organization")
    assert (status, text) == (0, "us: acme.Organization is done, 7 rows, 7 messages\n")
    assert len(waits) == 2


def test_run_refuses_what_is_paused() -> None:
    fill_organizations([1])
    with override_options({**ON, f"{KEY}.backfill.paused": True}):
        status, text = _run("run", "acme.Organization")
    assert (status, text.partition(":")[0]) == (3, "Paused")


@pytest.mark.parametrize(
    ("arguments", "silo", "says"),
    [
        (("run", "acme.Organisation"), None, "No producing model or table 'acme.Organisation'"),
        (("run", "acme.User"), "us", "acme.User does not live here: its silo is control"),
        (("status",), "mars", "mars"),
        (("reset", "acme.Organization", "--version", "0"), "us", "Version 0 is not positive"),
    ],
)
def test_mistakes_end_with_2_and_what_to_do(arguments: Any, silo: str | None, says: str) -> None:
    status, text = _run(*arguments, silo=silo)
    assert status == 2
    assert says in text


def test_an_interrupted_run_keeps_its_position_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    fill_organizations(range(1, 8))
    monkeypatch.setattr("hybridcloud.management.commands.backfill.sleep", interrupt)
    with override_options({**ON, "hybridcloud.backfill.per_minute": 3}):
        status, text = _run("run", "acme.Organization")
    assert status == 130
    assert "the position is kept" in text
    assert state() == (4, 1)


@pytest.mark.parametrize(("answer", "position"), [("y", (0, 1)), ("", (0, 2)), ("no", (0, 2))])
def test_reset_asks_first(
    answer: str, position: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_organizations([1])
    _run("run", "acme.Organization", "--sync")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    _run("reset", "acme.Organization", "--version", "1")
    assert "us: acme.Organization from (0, 2) to (0, 1)" in asked[0]
    assert state() == position


def test_a_dry_reset_changes_nothing_and_one_without_input_does_not_ask() -> None:
    fill_organizations([1])
    _run("run", "acme.Organization", "--sync")
    status, text = _run("reset", "acme.Organization", "--version", "1", "--dry-run")
    assert (status, state()) == (0, (0, 2))
    assert "not done" in text
    _run("reset", "acme.Organization", "--version", "1", "--no-input")
    _run("run", "acme.Organization", "--sync")
    assert written() == [1, 1]


def test_a_model_of_control_is_run_in_control() -> None:
    fill_tokens([1])
    assert _run("run", "acme.ApiToken", "--sync", silo=None)[1] == (
        "control: acme.ApiToken is done, 1 rows, 2 messages\n"
    )
