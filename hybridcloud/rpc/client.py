"""Sends calls to other silos over kept-alive connections; without it silos could not talk.

One urllib3 pool per process. A no-op call to this endpoint under gunicorn (median of 5 alternating
runs of 400, loopback) takes 1.00 with it, 0.74 with one kept ``http.client`` connection, 1.37 with a
kept ``httpx.Client`` and 1.46 with a new pool per call. ``http.client`` would leave pooling, dropped
connections and retries to be written here, for less than a batch saves: 0.03 per call in 100.

Only what surely ran no method is sent again: a refused or timed-out connect, and a 503.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError

from hybridcloud.causation import current_headers
from hybridcloud.conf import settings
from hybridcloud.registry import Slot
from silos.cells import control_address, get_cell
from silos.mode import CurrentSilo, get_current_silo

from . import errors
from .breaker import breakers
from .refusal import load_error
from .schema import Meta, dump_meta
from .sign import sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .method import RpcMethod

PREFIX = "/api/0/internal/rpc/"
#: Two more tries, at once and 0.2 s later; read errors are never retried: the method may have run.
RETRY = urllib3.Retry(
    total=2,
    connect=2,
    read=False,
    redirect=0,
    status=2,
    other=0,
    allowed_methods=None,
    status_forcelist=(503,),
    backoff_factor=0.1,
    raise_on_status=False,
    respect_retry_after_header=False,
)


def _no_trace() -> Mapping[str, str]:
    return {}


trace_headers = Slot("the headers of the current trace, for RPC calls", _no_trace)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request that is ready to be sent.

    Attributes:
        target: the silo that it goes to.
        path: the path below the silo's address.
        body: the bytes that were signed.
        headers: signature and content type.
        timeout_s: for connecting, and again for the answer.
        service: key of the service, for errors; empty in batches of several.
        method: name of the method, for errors.
    """

    target: CurrentSilo
    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float
    service: str
    method: str

    def for_method(self, service: str, method: str) -> Outgoing:
        """Return the request as one of its calls sees it, for the call's errors."""
        return replace(self, service=service, method=method)

    def fail[E: errors.RpcError](self, error: type[E], message: str, **facts: Any) -> E:
        """Return an error that says which call failed, and where."""
        name = f"{self.service}.{self.method}" if self.service else self.method
        return error(
            f"{message} Calling {name} in {self.target}.",
            service=self.service,
            method=self.method,
            silo=str(self.target),
            **facts,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the HTTP status and the body."""

    status: int
    body: bytes


class Transport(Protocol):
    """What carries requests to other silos."""

    #: Whether local calls, too, go through JSON, so that tests see what could not travel.
    round_trips_local_calls: bool

    def send(self, request: Outgoing) -> Reply:
        """Send one request and return the reply, whatever its status.

        Raises:
            RpcUnavailableError: there is no reply.
        """
        ...


def configured_address(silo: CurrentSilo) -> str:
    """Return the base URL of a silo, from the settings; empty where none is set."""
    return control_address() if silo.cell is None else get_cell(silo.cell).address


class HttpTransport:
    """Sends over HTTP, with a pool of kept-alive connections per process.

    Args:
        address_of: where each silo is.
        retry: what is tried again.
    """

    round_trips_local_calls = False

    def __init__(
        self,
        address_of: Callable[[CurrentSilo], str] = configured_address,
        *,
        retry: urllib3.Retry = RETRY,
    ) -> None:
        self._address_of = address_of
        self._retry = retry
        self._pools: urllib3.PoolManager | None = None
        self._pid = 0

    def send(self, request: Outgoing) -> Reply:
        """Send one request over a kept-alive connection."""
        address = self._address_of(request.target)
        if not address:
            setting = "CONTROL_ADDRESS" if request.target.cell is None else "CELLS"
            raise request.fail(
                errors.RpcSetupError,
                f"No address of {request.target} in HYBRIDCLOUD[{setting!r}]. Set it.",
            )
        try:
            response = self._pool().request(
                "POST",
                address.rstrip("/") + request.path,
                body=request.body,
                headers=request.headers,
                timeout=urllib3.Timeout(connect=request.timeout_s, read=request.timeout_s),
                retries=self._retry,
                redirect=False,
            )
        except LocationValueError as exc:
            raise request.fail(
                errors.RpcSetupError, f"Unusable address {address!r} of {request.target}."
            ) from exc
        except HTTPError as exc:
            cause = getattr(exc, "reason", None) or exc
            raise request.fail(
                errors.RpcUnavailableError, f"{type(cause).__name__}: no answer."
            ) from exc
        return Reply(response.status, response.data)

    def _pool(self) -> urllib3.PoolManager:
        # A forked child must not share its parent's sockets: replies would be mixed up.
        if self._pools is None or self._pid != os.getpid():
            self._pools = urllib3.PoolManager(num_pools=256, maxsize=32)
            self._pid = os.getpid()
        return self._pools


class TransportSlot:
    """The transport in use; tests put another one in its place."""

    def __init__(self, default: Transport) -> None:
        self._default = default
        self._override: Transport | None = None

    @property
    def is_overridden(self) -> bool:
        """Whether calls of a monolith go over a transport, too."""
        return self._override is not None

    @property
    def round_trips_local_calls(self) -> bool:
        """Whether local calls go through JSON."""
        return self._override is not None and self._override.round_trips_local_calls

    def send(self, request: Outgoing) -> Reply:
        """Send by the transport in use."""
        return (self._override or self._default).send(request)

    @contextmanager
    def override(self, transport: Transport | None) -> Iterator[None]:
        """Use another transport inside the block, on every thread; None: the shipped one."""
        former, self._override = self._override, transport
        try:
            yield
        finally:
            self._override = former


transport = TransportSlot(HttpTransport())


def call(method: RpcMethod, target: CurrentSilo, args: Mapping[str, Any]) -> Any:
    """Call a method in another silo, and return its result.

    Raises:
        RpcError: a leaf says what went wrong, and whether to retry.
    """
    body = b'{"meta":' + meta_for(target) + b',"args":' + method.schema.dump_args(args) + b"}"
    path = f"{PREFIX}{method.service}/{method.name}/"
    request = prepare(target, path, body, service=method.service, method=method.name)
    reply = exchange(request)
    try:
        return method.schema.load_reply(reply)
    except (errors.RpcBodyError, errors.RpcValidationError) as exc:
        raise request.fail(
            errors.RpcRemoteError, f"Unreadable reply: {exc}", problems=exc.problems
        ) from exc


def meta_for(target: CurrentSilo) -> bytes:
    """Return what travels beside the arguments, as JSON."""
    return dump_meta(Meta(silo_key(target), current_headers(), dict(trace_headers()) or None))


def silo_key(silo: CurrentSilo) -> str:
    """Return the name of a silo on the wire."""
    return "control" if silo.cell is None else f"cell:{silo.cell}"


def prepare(target: CurrentSilo, path: str, body: bytes, *, service: str, method: str) -> Outgoing:
    """Sign a request."""
    here = get_current_silo()
    headers = {
        "Authorization": sign(path, body, now=time.time()),
        "Content-Type": "application/json",
        "User-Agent": f"hybridcloud-rpc ({here.cell or here.mode.lower()})",
    }
    return Outgoing(target, path, body, headers, settings().rpc_timeout, service, method)


def exchange(request: Outgoing) -> bytes:
    """Send a request through the silo's breaker, and return the body of a good reply.

    Raises:
        RpcError: as the other silo says, or because it says nothing.
    """
    breaker = breakers.of(request.target.mode, request.target.cell)
    if not breaker.admit():
        raise request.fail(
            errors.RpcUnavailableError,
            "Breaker open: the silo did not answer lately, so it was not asked.",
        )
    try:
        reply = transport.send(request)
    except errors.RpcUnavailableError:
        breaker.record_unavailable()
        raise
    if reply.status == 200:
        breaker.record_answer()
        return reply.body
    error = refused(request, reply.body, reply.status)
    if isinstance(error, errors.RpcUnavailableError):
        breaker.record_unavailable()
    else:
        breaker.record_answer()
    raise error


def refused(request: Outgoing, body: bytes, status: int) -> errors.RpcError:
    """Return the error that another silo answered with."""
    told = load_error(body, status)
    error = request.fail(told.leaf, told.said, retryable=told.retryable, problems=told.problems)
    if isinstance(error, errors.RpcRemoteError):
        error.exception, error.incident = told.exception, told.incident
    return error
