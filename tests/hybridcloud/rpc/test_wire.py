"""Calls over a real socket: connections that are kept, answers that do not come, and what is sent again."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from hybridcloud.rpc import (
    RpcAuthenticationError,
    RpcError,
    RpcNotFoundError,
    RpcRemoteError,
    RpcSetupError,
    RpcTooLargeError,
    RpcUnavailableError,
    RpcValidationError,
)
from hybridcloud.rpc.client import RETRY, HttpTransport, transport
from hybridcloud.testutils.rpc import RpcServer, _application
from tests.hybridcloud.rpc.orchard import SECRET_VALUE, Fruit, Ran, orchard, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@contextmanager
def calling(server: RpcServer, retry: urllib3.Retry = RETRY) -> Iterator[None]:
    """Let calls go to a server by the transport of production."""
    with transport.override(HttpTransport(lambda _silo: server.address, retry=retry)):
        yield


def answering(*replies: tuple[str, bytes]) -> tuple[RpcServer, list[str]]:
    """Return a server that gives these replies, one a request, and then the endpoint's own."""
    waiting, seen = [*replies], list[str]()

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.append(environ["PATH_INFO"])
        if not waiting:
            return _application(environ, start_response)
        status, body = waiting.pop(0)
        # A Location, so that a 302 is one that could be followed.
        start_response(status, [("Content-Length", str(len(body))), ("Location", "/elsewhere/")])
        return [body]

    return RpcServer(application), seen


def test_one_connection_carries_many_calls(server: RpcServer, ran: Ran) -> None:
    assert [orchard.count(number=n) for n in range(20)] == [*range(20)]
    assert (server.accepted, len(ran.names)) == (1, 20)


def test_a_refused_call_does_not_cost_the_connection(server: RpcServer) -> None:
    for _ in range(3):
        with pytest.raises(RpcRemoteError):
            orchard.fail(value="x")
        assert orchard.count(number=1) == 1
    assert server.accepted == 1


def test_threads_share_the_pool_and_get_their_own_answers(server: RpcServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda n: orchard.count(number=n), range(100))] == [*range(100)]
    assert server.accepted <= 4


def test_a_connection_that_the_server_closed_while_idle_is_replaced(
    server: RpcServer, ran: Ran
) -> None:
    assert orchard.count(number=1) == 1
    (idle,) = server._open
    server.drop_connections()
    while server._open:  # bounded by the test's timeout: the server's thread ends at once
        threading.Event().wait(0.01)
    assert idle.fileno() == -1
    assert orchard.count(number=2) == 2
    assert server.accepted == 2
    assert ran.names == ["count", "count"]


def test_a_forked_child_opens_connections_of_its_own(server: RpcServer) -> None:
    script = f"""
import os
from django.conf import settings
settings.configure(HYBRIDCLOUD={{
    "SILO_MODE": "CELL", "CELL": "us", "CELLS": [{{"name": "us"}}],
    "CONTROL_ADDRESS": {server.address!r}, "RPC_SECRETS": "newest-secret",
}}, INSTALLED_APPS=[])
from tests.hybridcloud.rpc.orchard import orchard
assert orchard.count(number=1) == 1
child = os.fork()
for number in range(50):
    assert orchard.count(number=number + 100 * bool(child)) == number + 100 * bool(child)
if child:
    _, status = os.waitpid(child, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert server.accepted == 2


def test_an_answer_that_does_not_come_in_time_is_not_asked_for_again(
    server: RpcServer, ran: Ran, configure: Any
) -> None:
    with configure(RPC_TIMEOUT=1), pytest.raises(RpcUnavailableError) as caught:
        orchard.wait()
    ran.release.set()
    assert ran.names == ["wait"]
    error = caught.value
    assert error.retryable
    assert (error.service, error.method, error.silo) == ("orchard", "wait", "the control silo")
    assert str(error).startswith("ReadTimeoutError")
    assert "orchard.wait" in str(error)
    assert "the control silo" in str(error)


def test_a_connection_that_breaks_before_the_answer_is_not_tried_again(ran: Ran) -> None:
    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        ran.note("accepted")
        server.drop_connections()
        start_response("200 OK", [("Content-Length", "0")])
        return []

    server = RpcServer(application)
    with server.running(), calling(server), pytest.raises(RpcUnavailableError):
        orchard.count(number=1)
    assert ran.names == ["accepted"]


class CountedRetry(urllib3.Retry):
    """The shipped policy, with something to do instead of sleeping between two tries."""

    between: Callable[[], None]
    pauses: list[int]

    @classmethod
    def of(cls, between: Callable[[], None]) -> CountedRetry:
        made = cls(**{name: getattr(RETRY, name) for name in _POLICY})
        made.between, made.pauses = between, []
        return made

    def new(self, **changes: Any) -> CountedRetry:
        made = super().new(**changes)
        made.between, made.pauses = self.between, self.pauses
        return made

    def sleep(self, response: Any = None) -> None:
        self.pauses.append(1)
        self.between()


_POLICY = (
    "total", "connect", "read", "redirect", "status", "other", "allowed_methods",
    "status_forcelist", "backoff_factor", "raise_on_status", "respect_retry_after_header",
)  # fmt: skip


def test_a_refused_connection_is_tried_again_until_the_silo_is_up(ran: Ran) -> None:
    server = RpcServer()
    # Bound but not listening: connections are refused.
    port = server.server_address[1]
    server.server_close()
    later: list[RpcServer] = []

    def start() -> None:
        if len(retry.pauses) == 2:
            again = RpcServer(port=port)
            threads.enter_context(again.running())
            later.append(again)

    from contextlib import ExitStack

    retry = CountedRetry.of(start)
    with (
        ExitStack() as threads,
        transport.override(HttpTransport(lambda _: f"http://127.0.0.1:{port}", retry=retry)),
    ):
        assert orchard.count(number=7) == 7
    assert (len(retry.pauses), later[0].accepted, ran.names) == (2, 1, ["count"])


def test_a_silo_that_stays_away_is_unavailable_after_three_tries() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        retry = CountedRetry.of(lambda: None)
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with (
            transport.override(HttpTransport(lambda _: address, retry=retry)),
            pytest.raises(
                RpcUnavailableError, match=r"^NewConnectionError.*orchard\.count"
            ) as caught,
        ):
            orchard.count(number=1)
    assert len(retry.pauses) == 2
    assert caught.value.retryable
    assert caught.value.__cause__ is not None


def test_a_503_is_tried_again(ran: Ran) -> None:
    server, seen = answering(("503 Service Unavailable", b""), ("503 Service Unavailable", b"busy"))
    with server.running(), calling(server):
        assert orchard.count(number=5) == 5
    assert (len(seen), ran.names) == (3, ["count"])


def test_a_silo_that_keeps_answering_503_is_unavailable() -> None:
    server, seen = answering(*[("503 Service Unavailable", b"")] * 9)
    with server.running(), calling(server), pytest.raises(RpcUnavailableError, match="503"):
        orchard.count(number=5)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        ("500 Internal Server Error", RpcRemoteError, False),
        ("502 Bad Gateway", RpcUnavailableError, True),
        ("504 Gateway Timeout", RpcUnavailableError, True),
        ("404 Not Found", RpcNotFoundError, False),
        ("403 Forbidden", RpcAuthenticationError, False),
        ("413 Content Too Large", RpcTooLargeError, False),
        ("302 Found", RpcRemoteError, False),
        ("418 I'm a teapot", RpcRemoteError, False),
    ],
)
def test_a_proxy_s_answer_is_told_by_its_status_and_asked_for_once(
    status: str, error: type[RpcError], *, retryable: bool
) -> None:
    server, seen = answering((status, b"<html>oops</html>"))
    with (
        server.running(),
        calling(server),
        pytest.raises(error, match=rf"{status[:3]}.*orchard\.count") as caught,
    ):
        orchard.count(number=5)
    assert type(caught.value) is error
    assert (len(seen), caught.value.retryable) == (1, retryable)


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b'{"value":"x"}', b'{"value":null}'])
def test_an_unreadable_reply_is_an_error_of_the_other_silo(body: bytes) -> None:
    server, _ = answering(("200 OK", body))
    with (
        server.running(),
        calling(server),
        pytest.raises(RpcRemoteError, match=r"^Unreadable reply"),
    ):
        orchard.count(number=5)


def test_a_result_of_a_wrong_type_is_an_error_of_the_other_silo(
    server: RpcServer, ran: Ran
) -> None:
    with pytest.raises(RpcRemoteError, match="RpcValidationError"):
        orchard.lie()
    assert ran.names == ["lie"]


def test_an_exception_over_there_names_its_class_and_where_to_look(server: RpcServer) -> None:
    with pytest.raises(RpcRemoteError) as caught:
        orchard.fail(value=SECRET_VALUE)
    error = caught.value
    assert error.exception == "LookupError"
    assert error.incident
    assert error.incident in str(error)
    assert SECRET_VALUE not in str(error)
    assert (error.service, error.method, error.silo) == ("orchard", "fail", "the control silo")
    assert not error.retryable


def test_a_database_that_was_away_over_there_is_worth_another_try(
    server: RpcServer, ran: Ran
) -> None:
    with pytest.raises(RpcRemoteError, match="OperationalError") as caught:
        orchard.fail(value="database")
    assert caught.value.retryable
    assert ran.names == ["fail"]


def test_problems_found_over_there_arrive_with_their_place(server: RpcServer, ran: Ran) -> None:
    with pytest.raises(RpcValidationError, match=r"args\.fruit\.weight: finite_number") as caught:
        orchard.store(fruit=Fruit.model_construct(weight=float("nan")))
    assert [str(p) for p in caught.value.problems] == ["args.fruit.weight: finite_number"]
    assert ran.names == []


def test_an_error_survives_pickling(server: RpcServer) -> None:
    with pytest.raises(RpcRemoteError) as caught:
        orchard.fail(value="x")
    back = pickle.loads(pickle.dumps(caught.value))
    assert vars(back) == vars(caught.value)
    assert str(back) == str(caught.value)


def test_a_call_larger_than_the_limit_is_refused(server: RpcServer, ran: Ran) -> None:
    with pytest.raises(RpcTooLargeError, match="RPC_MAX_BYTES"):
        orchard.store(fruit=Fruit(name="x" * 200_000))
    assert ran.names == []


def test_another_secret_here_is_refused_there(server: RpcServer, ran: Ran) -> None:
    server_secrets = iter(["mine", "theirs"])
    from django.conf import settings
    from django.test import override_settings

    # The client reads the secrets first, the server second.
    both = {**settings.HYBRIDCLOUD, "RPC_SECRETS": lambda: next(server_secrets)}
    with override_settings(HYBRIDCLOUD=both), pytest.raises(RpcAuthenticationError):
        orchard.count(number=1)
    assert ran.names == []


def test_a_silo_without_an_address_is_a_setup_error(configure: Any) -> None:
    with configure(CELLS=[{"name": "us"}], DATABASES={}, CONTROL_ADDRESS=""):
        with (
            transport.override(HttpTransport()),
            pytest.raises(
                RpcSetupError, match=r"^No address of cell 'us' in HYBRIDCLOUD\['CELLS'\]"
            ),
        ):
            tree.where(cell_name="us")
        with (
            transport.override(HttpTransport()),
            pytest.raises(RpcSetupError, match=r"^No address.*CONTROL_ADDRESS"),
        ):
            orchard.where()


def test_an_address_that_is_none_is_a_setup_error() -> None:
    with (
        transport.override(HttpTransport(lambda _: "control:8000")),
        pytest.raises(RpcSetupError, match=r"^Invalid address 'control:8000'"),
    ):
        orchard.where()


def test_an_address_may_have_a_path(ran: Ran) -> None:
    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/silo/control")
        return _application(environ, start_response)

    server = RpcServer(application)
    with (
        server.running(),
        transport.override(HttpTransport(lambda _: f"{server.address}/silo/control/")),
    ):
        assert orchard.count(number=3) == 3
    assert ran.names == ["count"]
