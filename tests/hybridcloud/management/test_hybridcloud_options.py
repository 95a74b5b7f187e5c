"""Options are read and set from a shell; without it pulling a switch at night would need a Python console."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from hybridcloud import options
from hybridcloud.options.values import history
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

LIMIT = "tests.command.limit"
LABEL = "tests.command.label"
options.register(LIMIT, int, 5, doc="How many at once.")
options.register(LABEL, str, "")
options.register_pattern("tests.command.*.version", int, 0)

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    """Call the command; return what it printed."""
    out = StringIO()
    call_command("hybridcloud_options", *arguments, stdout=out)
    return out.getvalue().strip()


def run_json(*arguments: str) -> Any:
    """Call the command for machines; return the one document that it printed."""
    return json.loads(run(*arguments, "--json"))


def test_get_prints_the_value_in_force() -> None:
    assert run("get", LIMIT) == "5"
    assert run_json("get", LIMIT)["option"]["source"] == "default"
    with override_options({LIMIT: 9}):
        assert run("get", LIMIT) == "9"


def test_set_sets_and_keeps_who_and_why() -> None:
    assert run("set", LIMIT, "6", "--by", "ada", "--reason", "a busy day") == f"{LIMIT} 6 (was 5)"
    assert options.get(LIMIT) == 6
    (change,) = history(LIMIT)
    assert (change.value, change.by, change.reason) == (6, "ada", "a busy day")


def test_whoever_says_no_name_has_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    run("set", LIMIT, "6")
    assert history(LIMIT)[0].by == "grace"


def test_unset_gives_the_default_again() -> None:
    options.set(LIMIT, 6)
    assert run_json("unset", LIMIT) == {
        "version": 1,
        "key": LIMIT,
        "before": 6,
        "after": 5,
        "dry_run": False,
    }
    assert options.get(LIMIT) == 5


def test_a_dry_run_changes_nothing() -> None:
    assert run("set", LIMIT, "6", "--dry-run") == f"{LIMIT} would be 6 (was 5)"
    assert options.get(LIMIT) == 5
    options.set(LIMIT, 6)
    assert run("unset", LIMIT, "--dry-run") == f"{LIMIT} would be 5 (was 6)"
    assert options.get(LIMIT) == 6


@pytest.mark.parametrize(
    ("text", "value"), [("blue", "blue"), ('"blue"', "blue"), ("7", "7"), ("[1]", "[1]")]
)
def test_a_text_needs_no_quotes(text: str, value: str) -> None:
    run("set", LABEL, text)
    assert options.get(LABEL) == value


def test_list_shows_values_and_where_they_come_from() -> None:
    options.set(LIMIT, 6, by="ada")
    options.set("tests.command.acme_user.version", 2)
    printed = run("list")
    assert f"{LIMIT} = 6  (database, by ada)\n    How many at once." in printed
    assert f'{LABEL} = ""  (default)' in printed
    found = {each["key"]: each for each in run_json("list")["options"]}
    assert found[LIMIT]["by"] == "ada"
    assert found["tests.command.acme_user.version"]["value"] == 2


def test_a_derived_option_can_be_read_before_it_is_set() -> None:
    assert run("get", "tests.command.acme_team.version") == "0"


def test_history_shows_changes_newest_first() -> None:
    options.set(LIMIT, 6, by="ada", reason="a busy day")
    options.delete(LIMIT)
    lines = run("history", LIMIT).splitlines()
    assert lines[0].endswith(f"{LIMIT} unset  by (not recorded)")
    assert lines[1].endswith(f"{LIMIT} = 6  by ada: a busy day")
    document = run_json("history", "--limit", "1")
    assert [each["value"] for each in document["history"]] == [None]


def test_the_silo_can_be_named_where_one_process_is_all() -> None:
    run("set", LIMIT, "6", "--silo", "eu")
    run("set", LIMIT, "7", "--silo", "control")
    assert run("get", LIMIT, "--silo", "us") == "5"
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert options.get(LIMIT) == 6
    with assume_silo(SiloMode.CONTROL):
        assert options.get(LIMIT) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "tests.command.limits"), "Did you mean 'tests.command.limit'"),
        (("set", LIMIT, "six"), "not valid JSON"),
        (("set", LIMIT, '"6"'), "type int"),
        (("get", LIMIT, "--silo", "mars"), "mars"),
    ],
)
def test_mistakes_are_told_in_words_and_by_exit_status(
    arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        run(*arguments)
    assert caught.value.returncode == 2
