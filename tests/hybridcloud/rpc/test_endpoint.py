"""What the endpoint refuses, over a real socket: with a 4xx that leaks nothing, and no handler run."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import Client, RequestFactory, override_settings
from django.urls import resolve

import fixtures
from hybridcloud import hooks
from hybridcloud.rpc.endpoint import Endpoint
from hybridcloud.rpc.sign import sign
from tests.hybridcloud.rpc.orchard import SECRET_VALUE, Ran
from tests.hybridcloud.rpc.wire import BATCH, COUNT, GOOD, STORE, Answer, post

if TYPE_CHECKING:
    from hybridcloud.testutils.rpc import RpcServer

CORPUS = json.loads((Path(fixtures.__file__).parent / "data/rpc/bad_bodies.json").read_text())


def refused(answer: Answer, ran: Ran, *, status: int, kind: str) -> None:
    assert (answer.status, answer.error["kind"]) == (status, kind)
    assert answer.leaks() == []
    assert ran.names == []


def test_a_good_request_runs_its_handler_once(server: RpcServer, ran: Ran) -> None:
    answer = post(server)
    assert (answer.status, answer.body) == (200, b'{"value":1}')
    assert ran.names == ["count"]


def test_a_tampered_body_is_refused(server: RpcServer, ran: Ran) -> None:
    answer = post(server, body=GOOD.replace(b"1", b"2"), signed_body=GOOD)
    refused(answer, ran, status=403, kind="authentication")


def test_a_wrong_secret_is_refused(server: RpcServer, ran: Ran, configure: Any) -> None:
    with configure(RPC_SECRETS=["somebody-elses"]):
        wrong = sign(COUNT, GOOD, now=time.time())
    answer = post(server, headers={"Authorization": wrong})
    refused(answer, ran, status=403, kind="authentication")


def test_an_old_secret_is_accepted_while_listed_and_refused_after(
    server: RpcServer, ran: Ran, configure: Any
) -> None:
    with configure(RPC_SECRETS=["previous-secret"]):
        old = sign(COUNT, GOOD, now=time.time())
    assert post(server, headers={"Authorization": old}).status == 200
    ran.reset()
    with configure(RPC_SECRETS=["newest-secret"]):
        refused(
            post(server, headers={"Authorization": old}), ran, status=403, kind="authentication"
        )


@pytest.mark.parametrize("age", [120, -120], ids=["stale", "future"])
def test_a_timestamp_outside_the_window_is_refused(server: RpcServer, ran: Ran, age: float) -> None:
    refused(post(server, age=age), ran, status=403, kind="authentication")


@pytest.mark.parametrize("path", ["/api/0/internal/rpc/orchard/where/", STORE, BATCH])
def test_a_request_replayed_on_another_path_is_refused(
    server: RpcServer, ran: Ran, path: str
) -> None:
    refused(post(server, path, signed_path=COUNT), ran, status=403, kind="authentication")


@pytest.mark.parametrize("header", ["", "Bearer x", "Rpcsignature v1:1:" + "0" * 64])
def test_a_request_without_a_signature_of_ours_is_refused(
    server: RpcServer, ran: Ran, header: str
) -> None:
    refused(post(server, headers={"Authorization": header}), ran, status=403, kind="authentication")


@pytest.mark.parametrize("path", ["/orchard/nothing/", "/nothing/count/", "/orchard/__class__/"])
def test_an_unknown_service_or_method_is_not_found(server: RpcServer, ran: Ran, path: str) -> None:
    answer = post(server, "/api/0/internal/rpc" + path)
    refused(answer, ran, status=404, kind="not_found")


def test_who_cannot_sign_learns_no_names(server: RpcServer, ran: Ran) -> None:
    known, unknown = (
        post(server, f"/api/0/internal/rpc/{name}/count/", headers={"Authorization": "no"})
        for name in ("orchard", "nothing")
    )
    assert known == unknown
    refused(known, ran, status=403, kind="authentication")


@pytest.mark.parametrize("name", ["get_local_implementation", "create_delegation", "declaration"])
def test_only_declared_methods_can_be_called(server: RpcServer, ran: Ran, name: str) -> None:
    refused(post(server, f"/api/0/internal/rpc/orchard/{name}/"), ran, status=404, kind="not_found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_only_post_is_answered(server: RpcServer, ran: Ran, method: str) -> None:
    answer = post(server, method=method)
    assert (answer.status, answer.body, ran.names) == (405, b"", [])


@pytest.mark.parametrize("entry", CORPUS, ids=[entry["name"] for entry in CORPUS])
def test_a_bad_body_is_refused(server: RpcServer, ran: Ran, entry: dict[str, Any]) -> None:
    text, times = entry.get("repeat", ("", 0))
    body = (entry["body"] + text * times + entry.get("end", "")).encode()
    answer = post(server, STORE, body)
    refused(answer, ran, status=entry["status"], kind=entry["kind"])
    if "problems" in entry:
        assert answer.error["problems"] == entry["problems"]


def test_text_that_is_not_utf8_is_refused(server: RpcServer, ran: Ran) -> None:
    body = b'{"args":{"fruit":{"name":"\xff\xfe"}}}'
    refused(post(server, STORE, body), ran, status=400, kind="body")


def test_an_unknown_field_is_ignored_and_a_missing_one_defaulted(
    server: RpcServer, ran: Ran
) -> None:
    body = b'{"meta":{"to":"control","newer":1},"args":{"fruit":{"name":"x","newer":[1]},"newer":{}},"newer":2}'
    answer = post(server, STORE, body)
    assert answer.status == 200
    assert json.loads(answer.body)["value"] == {
        "organization_id": 0,
        "name": "x",
        "kind": "apple",
        "picked_at": None,
        "weight": 1.0,
        "seeds": [],
    }
    assert ran.names == ["store"]


def test_a_body_over_the_limit_is_refused(server: RpcServer, ran: Ran) -> None:
    refused(post(server, body=b" " * 100_001), ran, status=413, kind="too_large")


def test_a_body_at_the_limit_is_read_even_where_forms_may_not_be_as_large(
    server: RpcServer, ran: Ran
) -> None:
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10):
        assert post(server, body=GOOD + b" " * (100_000 - len(GOOD))).status == 200
    assert ran.names == ["count"]


class Counted(io.BytesIO):
    """A stream that counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_the_length_alone_refuses_a_body_that_is_too_large(ran: Ran) -> None:
    stream = Counted(b" " * 1_000_000)
    request = RequestFactory().generic("POST", COUNT, headers={"Content-Length": "1000000"})
    request._stream = stream
    answer = Endpoint().call(request, "orchard", "count")
    refused(Answer(answer.status_code, answer.content), ran, status=413, kind="too_large")
    assert stream.taken == 0


def test_a_length_that_lies_does_not_make_the_endpoint_read_on(ran: Ran) -> None:
    stream = Counted(b" " * 1_000_000)
    scope = {
        "type": "http",
        "method": "POST",
        "path": COUNT,
        "headers": [(b"content-length", b"9")],
    }
    answer = Endpoint().call(ASGIRequest(scope, stream), "orchard", "count")
    refused(Answer(answer.status_code, answer.content), ran, status=413, kind="too_large")
    assert stream.taken == 100_001


def test_a_body_that_ends_early_is_refused(ran: Ran) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError("connection reset")

    request = RequestFactory().post(COUNT, GOOD, "application/json")
    request._stream = Broken()
    answer = Endpoint().call(request, "orchard", "count")
    refused(Answer(answer.status_code, answer.content), ran, status=400, kind="body")


def test_a_chunked_body_is_refused_unread(server: RpcServer, ran: Ran) -> None:
    answer = post(server, sent=iter([b" " * 60_000] * 4))
    refused(answer, ran, status=400, kind="body")
    assert answer.error["problems"] == [{"at": [], "kind": "length_required"}]


@pytest.mark.parametrize("length", ["", "-1", "1e3", "+5", "0x10", " 5", "9" * 30, "\u0665"])
def test_a_length_that_is_no_number_is_refused(ran: Ran, length: str) -> None:
    request = RequestFactory().generic("POST", COUNT, GOOD, CONTENT_LENGTH=length)
    answer = Endpoint().call(request, "orchard", "count")
    refused(Answer(answer.status_code, answer.content), ran, status=400, kind="body")


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("cell:us", "another_silo"),
        ("cell:nowhere", "unknown"),
        ("us", "unknown"),
        ("mars", "unknown"),
    ],
)
def test_a_call_that_was_meant_for_another_silo_is_refused(
    server: RpcServer, ran: Ran, to: str, problem: str
) -> None:
    answer = post(server, body=GOOD.replace(b"control", to.encode()))
    refused(answer, ran, status=404, kind="not_found")
    assert answer.error["problems"] == [{"at": ["silo"], "kind": problem}]


def test_a_cell_refuses_calls_for_its_neighbour(ran: Ran, configure: Any) -> None:
    path = "/api/0/internal/rpc/tree/where/"
    answers = []
    with configure(SILO_MODE="CELL", CELL="us"):
        for cell in ("us", "eu"):
            body = f'{{"meta":{{"to":"cell:{cell}"}},"args":{{"cell_name":"{cell}"}}}}'.encode()
            headers = {"Authorization": sign(path, body, now=time.time())}
            request = RequestFactory().post(path, body, "application/json", headers=headers)
            answers.append(Endpoint().call(request, "tree", "where"))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert ran.names == ["where"]


def test_a_cell_has_no_control_services(ran: Ran, configure: Any) -> None:
    with configure(SILO_MODE="CELL", CELL="us"):
        headers = {"Authorization": sign(COUNT, b'{"args":{"number":1}}', now=time.time())}
        request = RequestFactory().post(
            COUNT, b'{"args":{"number":1}}', "application/json", headers=headers
        )
        answer = Endpoint().call(request, "orchard", "count")
    refused(Answer(answer.status_code, answer.content), ran, status=404, kind="not_found")


class Heard(hooks.Hooks):
    """Keeps what was captured."""

    def __init__(self) -> None:
        self.facts: list[hooks.Captured] = []

    def captured(self, fact: hooks.Captured) -> None:
        self.facts.append(fact)


def test_an_exception_of_a_handler_stays_in_its_silo_and_is_captured(server: RpcServer) -> None:
    body = f'{{"meta":{{"to":"control"}},"args":{{"value":"{SECRET_VALUE}"}}}}'.encode()
    with hooks.installed(Heard()) as heard:
        answer = post(server, "/api/0/internal/rpc/orchard/fail/", body)
    assert (answer.status, answer.error["kind"]) == (500, "remote")
    assert answer.error["exception"] == "LookupError"
    assert answer.leaks() == []
    (fact,) = heard.facts
    assert SECRET_VALUE in str(fact.error)
    assert fact.where == "rpc.endpoint"
    assert fact.tags["service"] == "orchard"
    assert fact.tags["method"] == "fail"
    assert fact.tags["incident"] == answer.error["incident"]


def test_a_silo_without_a_secret_runs_nothing_and_is_captured(
    server: RpcServer, ran: Ran, configure: Any
) -> None:
    good = sign(COUNT, GOOD, now=time.time())
    with configure(RPC_SECRETS=()), hooks.installed(Heard()) as heard:
        answer = post_signed(server, good)
    assert answer.status == 500
    assert answer.leaks() == []
    assert ran.names == []
    assert "No secret" in str(heard.facts[0].error)


def post_signed(server: RpcServer, header: str) -> Answer:
    import urllib3

    headers = {"Authorization": header, "Content-Type": "application/json"}
    response = urllib3.request(
        "POST", server.address + COUNT, body=GOOD, headers=headers, retries=False
    )
    return Answer(response.status, response.data)


def test_the_view_asks_for_no_login_no_csrf_token_and_no_transaction() -> None:
    view = resolve(COUNT, urlconf="hybridcloud.rpc.urls").func
    assert view.csrf_exempt is True
    assert view.login_required is False
    assert view._non_atomic_requests


@override_settings(ROOT_URLCONF="hybridcloud.rpc.urls")
def test_it_works_mounted_in_a_project_that_enforces_csrf(ran: Ran) -> None:
    headers = {"Authorization": sign(COUNT, GOOD, now=time.time())}
    client = Client(enforce_csrf_checks=True, headers=headers)
    response = client.post(COUNT, GOOD, content_type="application/json")
    assert (response.status_code, ran.names) == (200, ["count"])


def test_a_handler_runs_in_its_silo_and_counts_as_inside(server: RpcServer, ran: Ran) -> None:
    body = (
        b'{"meta":{"to":"control","causation":{"correlation":"c1","depth":3,"chain":["A","B"]}},'
        b'"args":{}}'
    )
    answer = post(server, "/api/0/internal/rpc/orchard/where/", body)
    assert json.loads(answer.body) == {"value": "the control silo"}
    assert (ran.depth, ran.chain, ran.was_inside) == (3, ("A", "B"), True)


def test_malformed_causation_begins_a_new_chain(server: RpcServer, ran: Ran) -> None:
    body = b'{"meta":{"to":"control","causation":{"depth":"x"}},"args":{}}'
    assert post(server, "/api/0/internal/rpc/orchard/where/", body).status == 200
    assert (ran.depth, ran.chain) == (0, ())


def test_a_reply_says_its_length_so_that_the_connection_can_be_kept() -> None:
    for body in (GOOD, b"{}"):
        headers = {"Authorization": sign(COUNT, body, now=time.time())}
        request = RequestFactory().post(COUNT, body, "application/json", headers=headers)
        answer = Endpoint().call(request, "orchard", "count")
        assert answer.headers["Content-Length"] == str(len(answer.content))


def test_a_body_that_a_middleware_has_read_is_still_answered(ran: Ran) -> None:
    headers = {"Authorization": sign(COUNT, GOOD, now=time.time())}
    request = RequestFactory().post(COUNT, GOOD, "application/json", headers=headers)
    assert request.body == GOOD
    assert Endpoint().call(request, "orchard", "count").status_code == 200
