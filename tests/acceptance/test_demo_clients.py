"""The demo's clients: what they make of answers, and of none."""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.demo.ledger import Ledger
from fixtures.demo.traffic import Client, all_kinds
from fixtures.demo.world import Organization, World

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "r1"

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

            # The names that http.server calls.
            do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

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
        if not client._lap:
            stop.set()  # nothing new, only what is owed
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
    assert script.seen == [("PATCH", "/api/organizations/7/")] * 2
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
    script.answers.extend((200, {"id": number}) for number in range(1, 61))
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
        if getattr(view, "csrf_exempt", False) and not name.startswith("get_")
    }
    assert all_kinds() == writes
