"""Transports that carry calls between silos inside one test run.

Both run the real endpoint with the real bytes and signature. They differ from production in that
one process plays every silo.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, override

from django.core.handlers.wsgi import WSGIRequest
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.db import connections
from django.test import RequestFactory
from django.urls import resolve
from django.urls.exceptions import Resolver404

from hybridcloud.rpc.breaker import breakers
from hybridcloud.rpc.client import HttpTransport, Outgoing, Reply, Transport, transport
from hybridcloud.rpc.endpoint import Endpoint
from hybridcloud.rpc.errors import RpcError
from hybridcloud.rpc.urls import patterns
from silos.guard import open_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django.http import HttpRequest, HttpResponse

    from silos.mode import CurrentSilo


class RpcInTransactionError(RpcError):
    """Another silo was called while a transaction was open.

    In production the call would hold the transaction's locks for as long as the network takes, and
    its effects would remain if the transaction rolled back.
    """


def every_silo(asked: CurrentSilo | None) -> CurrentSilo | None:
    """Let one endpoint be every silo, whatever silo the settings name."""
    return asked


# A tuple, because Django caches resolvers by it.
_URLS = tuple(patterns(Endpoint(silo_for=every_silo)))


class InProcessTransport:
    """Runs the endpoint on the caller's thread and its database connections."""

    round_trips_local_calls = True

    def __init__(self) -> None:
        self._factory = RequestFactory()

    def send(self, request: Outgoing) -> Reply:
        """Answer a request as its silo would.

        Raises:
            RpcInTransactionError: the caller has a transaction open.
        """
        refuse_open_transaction(request)
        incoming = self._factory.post(
            request.path,
            data=request.body,
            content_type=request.headers["Content-Type"],
            headers=dict(request.headers),
        )
        # Another process would not see the caller's context variables, so the endpoint must not.
        response = Context().run(_answer, incoming)
        return Reply(response.status_code, response.content)


class SocketTransport(HttpTransport):
    """Sends over HTTP to a server of this process, for all silos."""

    round_trips_local_calls = True

    def __init__(self, address: str) -> None:
        super().__init__(lambda _silo: address)

    @override
    def send(self, request: Outgoing) -> Reply:
        """Send a request over the socket.

        Raises:
            RpcInTransactionError: the caller has a transaction open.
        """
        refuse_open_transaction(request)
        return super().send(request)


class RpcServer(ThreadedWSGIServer):
    """The endpoint of every silo on a loopback port.

    The system chooses the port unless one is given.

    Attributes:
        accepted: how many connections the server accepted.
    """

    # So that closing the server waits for running calls, and no database connection outlives the test.
    daemon_threads = False

    def __init__(
        self, application: Callable[..., Iterable[bytes]] | None = None, *, port: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", port), _QuietHandler)
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self.set_app(application or _application)
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="rpc-server"
        )

    @property
    def address(self) -> str:
        """The base URL of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @override
    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and count it."""
        accepted, address = super().get_request()
        self.accepted += 1
        self._open.add(accepted)
        return accepted, address

    @override
    def close_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        self._open.discard(request)
        super().close_request(request)

    def drop_connections(self) -> None:
        """Close all connections, as a server does with idle ones."""
        for each in tuple(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end was faster
                self._open.discard(each)

    @contextmanager
    def running(self) -> Iterator[RpcServer]:
        """Serve inside the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self._thread.join()
            # Kept-alive connections hold their threads until they are dropped.
            self.drop_connections()
            self.server_close()


class _QuietHandler(WSGIRequestHandler):
    # Headers and body are two writes; with Nagle's algorithm the second would wait 40 ms for an ACK.
    disable_nagle_algorithm = True

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def in_process_transport() -> Iterator[InProcessTransport]:
    """Let calls between silos run in process, inside the block."""
    installed = InProcessTransport()
    with _carrying(installed):
        yield installed


@contextmanager
def socket_transport() -> Iterator[RpcServer]:
    """Let calls between silos go over a loopback socket, inside the block.

    The methods run on their own threads and connections, so they see only committed rows: use
    ``django_db(transaction=True)``.
    """
    with RpcServer().running() as server, _carrying(SocketTransport(server.address)):
        yield server


@contextmanager
def _carrying(carrier: Transport) -> Iterator[None]:
    # A breaker that one test opened must not refuse calls in the next.
    breakers.reset()
    with transport.override(carrier):
        yield
    breakers.reset()


def refuse_open_transaction(request: Outgoing) -> None:
    """Refuse a call from inside a transaction, other than a test case's own.

    Raises:
        RpcInTransactionError: a transaction is open on one of this thread's connections.
    """
    open_on = [c.alias for c in connections.all(initialized_only=True) if open_blocks(c)]
    if open_on:
        raise request.fail(
            RpcInTransactionError,
            f"Open transaction on {', '.join(open_on)} during an RPC call. Call after the commit, "
            f"or let an outbox message carry the change.",
        )


def _answer(request: HttpRequest) -> HttpResponse:
    match = resolve(request.path, urlconf=_URLS)  # type: ignore[arg-type]  # takes patterns, too
    response: HttpResponse = match.func(request, *match.args, **match.kwargs)
    return response


def _application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    try:
        response = _answer(WSGIRequest(environ))
    except Resolver404:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    start_response(f"{response.status_code} {response.reason_phrase}", [*response.items()])
    return [response.content]
