"""The endpoint: verifies calls from other silos, runs and answers them.

The order of the checks matters: the size, the signature, the names, the arguments, the silo; only
then does the method run. A refused call has run nothing. Its error says where and why, but never
repeats a value.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from pydantic import TypeAdapter
from pydantic_core import ValidationError

from hybridcloud import hooks
from hybridcloud.causation import from_headers, inside
from hybridcloud.conf import settings
from hybridcloud.raised import class_name, is_own_stop
from hybridcloud.registry import Slot
from silos.cells import get_cell
from silos.errors import UnknownCellError
from silos.mode import CurrentSilo, SiloMode, assume_silo, get_process_silo

from . import errors
from .batches import MAX_CALLS, PATH
from .client import PREFIX
from .refusal import dump_error
from .schema import Meta, MetaFields
from .service import find_method, run_local
from .sign import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from .method import RpcMethod

_LOG = logging.getLogger(__name__)
_LENGTH = re.compile(r"[0-9]{1,12}", re.ASCII)


class _BatchHead(TypedDict):
    meta: MetaFields
    calls: list[str]


_BATCH_HEAD = TypeAdapter(_BatchHead)
_REPLY_HEAD = TypeAdapter(dict[str, list[bool]])


def _no_trace(headers: Mapping[str, str]) -> AbstractContextManager[object]:  # noqa: ARG001
    return nullcontext()


continue_trace = Slot("the continuation of the caller's trace around a method", _no_trace)


def process_silo(asked: CurrentSilo | None) -> CurrentSilo | None:
    """Return the silo of this process in which a call runs.

    A monolith is every silo, so there it is the requested one.

    Args:
        asked: the silo that the caller requested; None if it did not name one.
    """
    here = get_process_silo()
    return asked if here.mode is SiloMode.MONOLITH else here


@dataclass(frozen=True)
class Endpoint:
    """The endpoint's views.

    Attributes:
        silo_for: returns the silo of this process in which a call runs, from the requested one.
    """

    silo_for: Callable[[CurrentSilo | None], CurrentSilo | None] = process_silo

    def call(self, request: HttpRequest, service: str, method: str) -> HttpResponse:
        """Answer one call."""
        return self._answer(request, lambda: self._call(request, service, method))

    def batch(self, request: HttpRequest) -> HttpResponse:
        """Answer a batch of calls."""
        return self._answer(request, lambda: self._batch(request))

    def _answer(self, request: HttpRequest, work: Callable[[], bytes]) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        try:
            return _reply(work(), 200)
        except errors.RpcSetupError as exc:
            return _respond(_captured(exc, {"path": request.path}))
        except errors.RpcError as exc:
            return _respond(exc)
        except BaseException as exc:
            if is_own_stop(exc):
                raise
            return _respond(_captured(exc, {"path": request.path}))

    def _call(self, request: HttpRequest, service_key: str, method_name: str) -> bytes:
        body = _read_body(request)
        _verify(request, f"{PREFIX}{service_key}/{method_name}/", body)
        method = _find(service_key, method_name)
        meta, args = method.schema.load_call(body)
        return _run(method, args, meta, self._silo_of(meta, method))

    def _batch(self, request: HttpRequest) -> bytes:
        body = _read_body(request)
        _verify(request, PATH, body)
        head, *lines = body.split(b"\n")
        try:
            read = _BATCH_HEAD.validate_json(head, strict=True)
        except ValidationError:
            # `from None`, because the cause contains values.
            raise errors.RpcBodyError("Not a batch.") from None
        if len(lines) > MAX_CALLS:
            raise errors.RpcTooLargeError(f"More than {MAX_CALLS} calls in a batch.")
        if len(lines) != len(read["calls"]):
            raise errors.RpcBodyError("Not a batch: the numbers of names and arguments differ.")
        meta = Meta(**read["meta"])
        ok, replies = [], []
        for name, line in zip(read["calls"], lines, strict=True):
            good, reply = self._one_of_batch(name, line, meta)
            ok.append(good)
            replies.append(reply)
        return b"\n".join((_REPLY_HEAD.dump_json({"ok": ok}), *replies))

    def _one_of_batch(self, name: str, line: bytes, meta: Meta) -> tuple[bool, bytes]:
        try:
            method = _find(*name.partition(".")[::2])
            args = method.schema.load_args(line)
            return True, _run(method, args, meta, self._silo_of(meta, method))
        except errors.RpcError as exc:
            return False, dump_error(exc)

    def _silo_of(self, meta: Meta, method: RpcMethod) -> CurrentSilo:
        """Return the silo to enter; refuse a call meant for another one."""
        asked = _read_silo(meta.to)
        here = self.silo_for(asked)
        if here is None or here.mode is not method.mark.silo or asked not in (None, here):
            raise _not_found("silo", "another_silo")
        return here


def _read_body(request: HttpRequest) -> bytes:
    length = request.META.get("CONTENT_LENGTH") or ""
    # Chunked bodies cannot be refused by size before they are read. Our client does not send them.
    if not _LENGTH.fullmatch(length):
        raise errors.RpcBodyError(
            "Missing or invalid Content-Length.", problems=[errors.Problem((), "length_required")]
        )
    limit = settings().rpc_max_bytes
    if int(length) > limit:
        raise errors.RpcTooLargeError(f"Over {limit} bytes.")
    try:
        # Not request.body: it enforces DATA_UPLOAD_MAX_MEMORY_SIZE, which is meant for forms.
        body = request.read(limit + 1)
    except UnreadablePostError as exc:
        raise errors.RpcBodyError("The body ended early.") from exc
    if len(body) > limit:
        raise errors.RpcTooLargeError(f"Over {limit} bytes.")
    return body


def _verify(request: HttpRequest, path: str, body: bytes) -> None:
    verify(request.META.get("HTTP_AUTHORIZATION", ""), path, body, now=time.time())


def _find(service_key: str, method_name: str) -> RpcMethod:
    found = find_method(service_key, method_name)
    if found is None:
        raise _not_found("method", "unknown")
    return found


def _not_found(what: str, kind: str) -> errors.RpcNotFoundError:
    return errors.RpcNotFoundError(f"No such {what}.", problems=[errors.Problem((what,), kind)])


def _read_silo(name: str) -> CurrentSilo | None:
    if not name:
        return None
    if name == "control":
        return CurrentSilo(SiloMode.CONTROL)
    kind, _, cell = name.partition(":")
    if kind != "cell":
        raise _not_found("silo", "unknown")
    try:
        return CurrentSilo(SiloMode.CELL, get_cell(cell).name)
    except UnknownCellError:
        raise _not_found("silo", "unknown") from None


def _run(method: RpcMethod, args: Mapping[str, Any], meta: Meta, silo: CurrentSilo) -> bytes:
    try:
        with (
            assume_silo(silo.mode, cell=silo.cell),
            inside(from_headers(meta.causation)),
            continue_trace(meta.trace or {}),
        ):
            return method.schema.dump_reply(run_local(method, args))
    except BaseException as exc:  # edge of the process: the caller gets only an incident to look up
        if is_own_stop(exc):
            raise
        tags = {"service": method.service, "method": method.name, "silo": str(silo)}
        raise _captured(exc, tags) from exc


def _captured(exc: BaseException, tags: dict[str, str]) -> errors.RpcRemoteError:
    """Record an exception here; return the error that the caller may see."""
    incident = uuid.uuid4().hex[:12]
    _LOG.error("RPC call failed, incident %s", incident, exc_info=exc, extra=tags)
    fact = hooks.Captured(exc, "rpc.endpoint", {**tags, "incident": incident})
    hooks.tell(hooks.active.captured, fact)
    error = errors.RpcRemoteError("The method raised.", retryable=_is_retryable(exc))
    error.exception, error.incident = class_name(exc), incident
    return error


def _is_retryable(exc: BaseException) -> bool:
    try:
        of_database = isinstance(exc, (OperationalError, InterfaceError))
        return bool(getattr(exc, "retryable", of_database))
    except Exception:  # noqa: BLE001  (an attribute of a user's exception may raise)
        return False


def _respond(error: errors.RpcError) -> HttpResponse:
    return _reply(dump_error(error), error.status)


def _reply(body: bytes, status: int) -> HttpResponse:
    # Servers that do not chunk would close the connection after a reply that has no length.
    headers = {"Content-Length": str(len(body))}
    return HttpResponse(body, "application/json", status, headers=headers)
