"""The parts of the demo that decide: a verdict that cannot say no is worth nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.demo.compare import Mismatch, compare
from fixtures.demo.databases import Gauges
from fixtures.demo.ledger import Event, Ledger, judge_events
from fixtures.demo.replicas import Judge, tables_of
from fixtures.demo.verdict import Report, complain, is_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "r1"

# -- the comparison ---------------------------------------------------------------------------

rows = st.dictionaries(
    st.integers(0, 20), st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.booleans()))
)


def table_of(values: dict[int, tuple[str, bool | None]]) -> list[dict[str, Any]]:
    return [{"id": key, "name": name, "flag": flag} for key, (name, flag) in values.items()]


def compared(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[Mismatch]:
    columns = ("id", "name", "flag")
    return compare("copy", key=("id",), columns=columns, expected=expected, found=found)


@given(source=rows, replica=rows)
def test_exactly_the_missing_the_surplus_and_the_differing_are_found(
    source: dict[int, tuple[str, bool | None]], replica: dict[int, tuple[str, bool | None]]
) -> None:
    found = compared(table_of(source), table_of(replica))
    by_problem = {
        problem: {each.key[0] for each in found if each.problem == problem}
        for problem in ("missing", "surplus", "differs")
    }
    assert by_problem["missing"] == source.keys() - replica.keys()
    assert by_problem["surplus"] == replica.keys() - source.keys()
    assert by_problem["differs"] == {
        key for key in source.keys() & replica.keys() if source[key] != replica[key]
    }


def test_a_second_copy_of_a_row_is_surplus() -> None:
    row = {"id": 1, "name": "a", "flag": None}
    assert compared([row], [row, row]) == [Mismatch("copy", "surplus", (1,))]


def test_a_difference_names_the_column_and_both_values() -> None:
    found = compared(
        [{"id": 1, "name": "new", "flag": True}], [{"id": 1, "name": "old", "flag": True}]
    )
    assert [str(each) for each in found] == ["copy 1: name is 'old', its source has 'new'"]


def test_a_column_that_the_comparison_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="Unexpected or missing columns in copy: colour"):
        compared([], [{"id": 1, "name": "a", "flag": None, "colour": "red"}])


def test_a_source_with_two_rows_of_a_key_is_an_error() -> None:
    row = {"id": 1, "name": "a", "flag": None}
    with pytest.raises(ValueError, match=r"Two rows \(1,\) in the source of copy"):
        compared([row, row], [])


# -- the audit log ----------------------------------------------------------------------------


def logged(event: Event, **changes: Any) -> dict[str, Any]:
    row = {
        "event_id": event.event_id or "id-of-nobody",
        "organization_id": event.organization_id or 7,
        "actor_id": event.actor_id,
        "action": event.action,
        "target": event.target,
        "at": NOW,
    }
    return row | changes


RENAME = Event("organization.rename", "r1-0-name-1", 5, 7, event_id="e1", answered=True)
LOST = Event("demo.event", "r1-0-event-2", 5, 7, attempts=2)


def events_judged(events: Sequence[Event], found: Sequence[dict[str, Any]]) -> list[str]:
    judged = judge_events(
        events, found, since=NOW - timedelta(hours=1), until=NOW + timedelta(hours=1)
    )
    return [each.problem + each.column for each in judged]


@pytest.mark.parametrize(
    ("events", "found", "problems"),
    [
        pytest.param([RENAME], [logged(RENAME)], [], id="there"),
        pytest.param([RENAME], [], ["missing"], id="lost"),
        pytest.param([RENAME], [logged(RENAME, event_id="e2")], ["missing"], id="another's id"),
        pytest.param([RENAME], [logged(RENAME)] * 2, ["surplus"], id="twice"),
        pytest.param([RENAME], [logged(RENAME, actor_id=6)], ["differsactor_id"], id="actor"),
        pytest.param(
            [RENAME], [logged(RENAME, organization_id=8)], ["differsorganization_id"], id="place"
        ),
        pytest.param(
            [RENAME], [logged(RENAME, at=NOW - timedelta(days=1))], ["differsat"], id="time"
        ),
        pytest.param([], [logged(RENAME)], ["surplus"], id="asked by nobody"),
        pytest.param([LOST], [], [], id="answer lost, not done"),
        pytest.param([LOST], [logged(LOST)] * 2, [], id="answer lost, done each time"),
        pytest.param([LOST], [logged(LOST)] * 3, ["surplus"], id="done more often than asked"),
    ],
)
def test_the_audit_log_is_judged_by_what_clients_were_told(
    events: list[Event], found: list[dict[str, Any]], problems: list[str]
) -> None:
    assert events_judged(events, found) == problems


# -- all replicas -----------------------------------------------------------------------------


def snapshot() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Make a small company that has converged: user 1 is in both cells, user 2 in none."""
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {
        silo: {name: [] for name in tables_of(silo).values()} for silo in ("control", "us", "eu")
    }
    person = {"email": "", "first_name": "", "last_name": "", "is_active": True}
    for user in (1, 2):
        tables["control"]["user"].append(
            {"id": user, "username": f"u{user}", "password": "", **person}
        )
    token = {"user_id": 1, "name": "t", "token_hash": "x"}
    tables["control"]["apitoken"].append({"id": 30, **token})
    provider = {"organization_id": 10, "provider": "saml", "domain": "d"}
    tables["control"]["authprovider"].append({"id": 40, **provider})
    for cell, organization in (("us", 10), ("eu", 11)):
        here, named = tables[cell], {"name": "n", "slug": f"s{organization}"}
        place = {"organization_id": organization}
        here["organization"].append({"id": organization, **named})
        tables["control"]["organizationmapping"].append(
            {"id": 1, **place, "cell_name": cell, **named}
        )
        member = {**place, "user_id": 1, "role": "admin"}
        here["organizationmember"].append({"id": 1, **member})
        tables["control"]["organizationmembermapping"].append(
            {"id": 1, **member, "organizationmember_id": 1, "cell_name": cell}
        )
        here["team"].append({"id": 2, **place, **named})
        tables["control"]["teammapping"].append(
            {"id": 1, **place, "team_id": 2, **named, "last_actor_id": 1}
        )
        project = {**place, "team_id": 2, **named, "archived": False}
        here["project"].append({"id": 3, **project})
        tables["control"]["projectmapping"].append({"id": 1, **project, "project_id": 3})
        here["userreplica"].append({"id": 9, "user_id": 1, "username": "u1", **person})
        here["apitokenreplica"].append({"id": 9, "api_token_id": 30, **token})
    tables["us"]["authproviderreplica"].append({"id": 9, "auth_provider_id": 40, **provider})
    gone = {"organization_id": 10, "project_id": 99, "slug": "r1-0-project-1"}
    tables["control"]["removedproject"].append({"id": 1, **gone})
    tables["control"]["auditlogentry"].append(logged(RENAME) | {"id": 1})
    return tables


def ledger() -> Ledger:
    book = Ledger(RUN)
    book.expect(RENAME)
    book.projects["r1-0-project-1"] = (10, 99)
    book.team_actors[10, 2] = 1
    return book


def judged(tables: Any, book: Ledger | None = None) -> list[str]:
    judge = Judge(tables, book or ledger())
    found = judge.judge(since=NOW - timedelta(hours=1), until=NOW + timedelta(hours=1))
    return [f"{each.replica}: {each.problem}" for each in found.mismatches]


REPLICAS = [
    ("control", "organizationmapping"),
    ("control", "organizationmembermapping"),
    ("control", "teammapping"),
    ("control", "projectmapping"),
    ("control", "removedproject"),
    ("control", "auditlogentry"),
    ("us", "userreplica"),
    ("eu", "userreplica"),
    ("us", "apitokenreplica"),
    ("eu", "apitokenreplica"),
    ("us", "authproviderreplica"),
]


def test_a_company_that_converged_has_no_mismatch() -> None:
    assert judged(snapshot()) == []


@pytest.mark.parametrize(("silo", "table"), REPLICAS)
def test_a_replica_that_lacks_a_row_is_found(silo: str, table: str) -> None:
    tables = snapshot()
    tables[silo][table].pop()
    assert len(judged(tables)) == 1
    assert judged(tables)[0].endswith("missing")


@pytest.mark.parametrize(
    ("silo", "table", "column"),
    [
        (silo, table, column)
        for silo, table in REPLICAS
        for column in snapshot()[silo][table][-1]
        if column not in {"id", "at"}
    ],
)
def test_a_change_of_any_column_of_any_replica_is_found(silo: str, table: str, column: str) -> None:
    tables = snapshot()
    row = tables[silo][table][-1]
    if (table, column) == ("teammapping", "last_actor_id"):
        # Known of the team only that a client of this run changed.
        row = tables[silo][table][0]
    row[column] = {bool: lambda old: not old, int: lambda old: old + 1000}.get(
        type(row[column]), lambda old: f"{old}-changed"
    )(row[column])
    assert judged(tables)


@pytest.mark.parametrize("cell", ["us", "eu"])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("userreplica", {"user_id": 2, "username": "u2"}),
        ("apitokenreplica", {"api_token_id": 31}),
        ("authproviderreplica", {"auth_provider_id": 41}),
    ],
)
def test_a_row_that_a_cell_should_not_have_is_surplus(
    cell: str, table: str, key: dict[str, Any]
) -> None:
    tables = snapshot()
    model = (tables["us"][table] + tables["eu"][table])[0]
    tables[cell][table].append(dict(model) | key)
    assert [each.rpartition(" ")[2] for each in judged(tables)] == ["surplus"]


STONE = {"id": 1, "created_at": NOW}


def test_a_deletion_without_a_tombstone_in_a_cell_is_found() -> None:
    tables, book = snapshot(), ledger()
    book.note_made("control", "user", 1, 2, 3)
    tables["us"]["tombstone"].append({"table_name": "acme_user", "object_identifier": 3, **STONE})
    assert judged(tables, book) == ["tombstone in eu: missing"]


def test_a_deletion_without_a_tombstone_in_control_is_found() -> None:
    book = ledger()
    book.note_made("us", "team", 2, 8)
    assert judged(snapshot(), book) == ["tombstone in control: missing"]


def test_a_tombstone_of_a_row_that_is_there_is_surplus() -> None:
    tables = snapshot()
    tables["eu"]["tombstone"].append({"table_name": "acme_user", "object_identifier": 1, **STONE})
    assert judged(tables) == ["tombstone in eu: surplus"]


def test_a_membership_of_a_user_who_is_gone_is_found() -> None:
    tables = snapshot()
    tables["us"]["organizationmember"].append(
        {"id": 5, "organization_id": 10, "user_id": 77, "role": "member"}
    )
    assert judged(tables) == [
        "organizationmembermapping in control: missing",
        "organizationmember in us: surplus",
    ]


# -- what is quiet, and what is enough -----------------------------------------------------------


def gauges(*, pending: int = 0, parked: int = 0, failing: int = 0, newest: int = 5) -> Gauges:
    return Gauges(pending, parked, failing, 0.0, newest)


@pytest.mark.parametrize(
    ("before", "now", "quiet"),
    [
        pytest.param(gauges(), gauges(), True, id="empty twice"),
        pytest.param(gauges(pending=1), gauges(), False, id="was pending"),
        pytest.param(gauges(), gauges(pending=1), False, id="pending"),
        pytest.param(gauges(), gauges(parked=1), False, id="parked"),
        pytest.param(gauges(), gauges(failing=1), False, id="failing"),
        pytest.param(gauges(), gauges(newest=6), False, id="a message came and went"),
    ],
)
def test_silos_are_quiet_when_two_looks_see_nothing_and_nothing_came_between(
    before: Gauges, now: Gauges, *, quiet: bool
) -> None:
    assert is_quiet({"us": gauges(), "eu": before}, {"us": gauges(), "eu": now}) is quiet


def test_a_verdict_is_good_only_with_work_done_and_nothing_left(tmp_path: Path) -> None:
    report = Report(operations=600, seconds=1.0)
    assert report.is_good
    report.pending = 2
    report.mismatches = [Mismatch("copy", "missing", (1,))]
    report.write(tmp_path / "demo.json")
    told = json.loads((tmp_path / "demo.json").read_text())
    assert told["verdict"] == "2 messages pending; 1 mismatches"
    assert told["mismatches"] == ["copy 1: missing"]
    assert {"operations", "seconds", "faults", "pending"} <= told.keys()


def test_a_demo_that_did_too_little_is_not_called_converged() -> None:
    report, book = Report(), Ledger(RUN)
    book.count("create_user")
    book.complain("change_user in control: status 500")
    complain(report, book, kinds={"create_user", "delete_user"}, strikes=[])
    assert report.complaints == [
        "only 1 of 500 operations",
        "never done: delete_user",
        "nothing was killed",
        "1 wrong answers, the first: change_user in control: status 500",
    ]
