"""The parts of the demo that decide: a verdict that cannot say no is worth nothing."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.demo.compare import Mismatch, compare
from fixtures.demo.databases import Gauges
from fixtures.demo.ledger import Event, Ledger, judge_events
from fixtures.demo.replicas import Judge, tables_of
from fixtures.demo.run import DemoError, Program, Programs
from fixtures.demo.traffic import Client, all_kinds
from fixtures.demo.verdict import Report, complain, is_quiet
from fixtures.demo.world import Organization, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    with pytest.raises(ValueError, match="Other columns than expected in copy: colour"):
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


def judged(tables: Any) -> list[str]:
    judge = Judge(tables, ledger())
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


def test_a_membership_of_a_user_who_is_gone_is_found() -> None:
    tables = snapshot()
    tables["us"]["organizationmember"].append(
        {"id": 5, "organization_id": 10, "user_id": 77, "role": "member"}
    )
    assert judged(tables) == ["organizationmembermapping in control: missing"]


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


# -- the clients ------------------------------------------------------------------------------


class Script:
    """A silo's server that answers as a test says: a status, or None to drop the connection."""

    def __init__(self) -> None:
        self.answers: deque[tuple[int, dict[str, Any]] | None] = deque()
        self.seen: list[tuple[str, str]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                script.seen.append((self.command, self.path))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = script.answers.popleft()
                if answer is None:
                    self.close_connection = True
                    return
                status, body = answer
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = Thread(target=self.server.serve_forever, daemon=True)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def client_of(url: str, *, calm: bool = True) -> Client:
    world = World("r1-0", Random(1), Ledger(RUN))
    addresses = dict.fromkeys(("control", "us", "eu"), url)
    return Client(world, addresses, ("us", "eu"), 0.0, lambda _: calm)


def settle(client: Client, *operations: Any) -> None:
    """Let the client send exactly these operations, until each is settled."""
    stop = Flag()
    client._lap.extend(("us", lambda _, each=each: each) for each in operations)
    deadline = time.monotonic() + 20
    while (client._lap or client._owed) and time.monotonic() < deadline:
        if not client._step(stop):
            time.sleep(0.01)
    assert not client._owed


def rename_of(world: World) -> Any:
    from fixtures.demo.tenants import rename_organization

    world.organizations = [Organization(7, "us")]
    return rename_organization(world, "us")


def test_a_request_without_an_answer_is_sent_again_and_may_have_been_done_twice(
    script: Script,
) -> None:
    client = client_of(script.url, calm=False)
    script.answers.extend([None, (200, {"event_id": "e1"})])
    settle(client, rename_of(client.world))
    assert script.seen == [("PATCH", "/organizations/7/")] * 2
    [event] = client.world.ledger.events
    assert (event.attempts, event.answered, event.event_id) == (2, True, "e1")
    assert client.world.ledger.operations == 1
    assert client.world.ledger.problems == []


def test_a_conflict_after_a_lost_answer_means_that_it_was_done(script: Script) -> None:
    from fixtures.demo.tenants import create_organization

    client = client_of(script.url, calm=False)
    script.answers.extend([None, (409, {"error": "IntegrityError"})])
    settle(client, create_organization(client.world, "us"))
    assert client.world.ledger.done == {"create_organization": 1}
    [event] = client.world.ledger.events
    assert (event.attempts, event.answered, event.organization_id) == (1, True, None)


def test_a_refusal_that_no_lost_answer_explains_is_a_problem(script: Script) -> None:
    client = client_of(script.url)
    script.answers.append((404, {"error": "no organization"}))
    settle(client, rename_of(client.world))
    [problem] = client.world.ledger.problems
    assert problem.startswith("rename_organization in us: PATCH organizations/7/: status 404")


def test_an_error_of_a_silo_that_is_up_is_a_problem_even_if_a_second_try_succeeds(
    script: Script,
) -> None:
    client = client_of(script.url)
    script.answers.extend([(500, {}), (200, {"event_id": "e1"})])
    settle(client, rename_of(client.world))
    assert client.world.ledger.problems == [
        "rename_organization in us: PATCH organizations/7/: status 500"
    ]


def test_a_client_whose_silo_is_down_goes_on_with_the_others(script: Script) -> None:
    client = client_of(script.url, calm=False)
    client.addresses = {**client.addresses, "us": "http://127.0.0.1:1"}
    stop = Flag()
    client._lap.extend([("us", lambda _: rename_of(client.world))])
    assert client._step(stop)
    assert client._owed.keys() == {"us"}
    client._owed["us"].due_s = time.monotonic() + 60
    script.answers.extend((200, {"id": number, "ids": []}) for number in range(1, 61))
    for _ in range(60):
        client._step(stop)
    assert len(script.seen) > 30
    assert client._owed["us"].tries == 1


def test_every_kind_of_write_of_the_api_is_asked_for() -> None:
    from fixtures.acme.api import cell, control

    writes = {
        name
        for half in (cell, control)
        for name, view in vars(half).items()
        if getattr(view, "__wrapped__", None) and not name.startswith("get_")
    }
    assert all_kinds() == writes


# -- the processes ----------------------------------------------------------------------------

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid, flush=True)
{and_then}
time.sleep(600)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def program_of(folder: Path, code: str) -> Program:
    log = folder / "program.log"
    command = [sys.executable, "-c", code]
    return Program("program", "us", command, {}, log, lambda text: "ready" in text)


def wait_for(program: Program) -> int:
    """Return the id of the child that the program says it has."""
    deadline = time.monotonic() + 20
    while not program.has_started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(program.log.read_text().split()[1])


def is_alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_kill_takes_the_whole_process_group(tmp_path: Path) -> None:
    program = program_of(tmp_path, FAMILY.format(and_then=""))
    program.start(folder=tmp_path)
    child, pid = wait_for(program), program.pid
    program.kill()
    assert not is_alive(child)
    assert not is_alive(pid)


def test_what_does_not_hear_is_stopped_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.demo.run._STOP_S", 0.3)
    deaf = program_of(tmp_path, DEAF + FAMILY.format(and_then=""))
    with Programs(tmp_path, [deaf]) as programs:
        programs.start([deaf])
        child, pid = wait_for(deaf), deaf.pid
    assert not is_alive(child)
    assert not is_alive(pid)


def test_a_frozen_program_is_stopped_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.demo.run._STOP_S", 0.3)
    frozen = program_of(tmp_path, FAMILY.format(and_then=""))
    with Programs(tmp_path, [frozen]) as programs:
        programs.start([frozen])
        child = wait_for(frozen)
        frozen.send(signal.SIGSTOP)
    assert not is_alive(child)


def test_a_program_that_ends_at_its_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    program = program_of(tmp_path, "import sys; sys.exit('no port')")
    with Programs(tmp_path, [program]) as programs:
        programs.start([program])
        with pytest.raises(DemoError, match=r"(?s)program ended with status 1.*no port"):
            programs.wait_started(seconds=20)


def test_a_step_that_fails_stops_the_other_steps(tmp_path: Path) -> None:
    long = program_of(tmp_path, FAMILY.format(and_then=""))
    long.log = tmp_path / "long.log"
    bad = program_of(tmp_path, "import sys; sys.exit('no table')")
    with pytest.raises(DemoError, match=r"(?s)ended with status 1.*no table"):
        Programs(tmp_path).run_to_end([bad, long], seconds=20)
    assert long.status is None
