"""Batches: many calls to one silo in a single request.

The body is JSON lines: first a line with the meta and the methods' names, then one line with each
call's arguments. The reply has the same form. A batch therefore needs one signature, each byte is
parsed once, and an invalid call does not affect the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from pydantic import TypeAdapter
from pydantic_core import ValidationError

from hybridcloud.raised import is_own_stop
from silos.mode import CurrentSilo, SiloMode, assume_silo, get_current_silo, get_process_silo

from . import errors
from .client import PREFIX, Outgoing, exchange, meta_for, prepare, refused, transport
from .service import call_here, method_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from .method import RpcMethod

MAX_CALLS = 1000
PATH = f"{PREFIX}batch/"


class _ReplyHead(TypedDict):
    ok: list[bool]


_NAMES = TypeAdapter(list[str])
_REPLY_HEAD = TypeAdapter(_ReplyHead)


@dataclass(eq=False, slots=True)
class BatchItem[R]:
    """One call of a batch, and its outcome once the batch's block has ended.

    Attributes:
        error: the exception of a failed call, or None.
    """

    method: RpcMethod
    args: Mapping[str, Any]
    error: BaseException | None = None
    _value: Any = None
    _done: bool = False

    def result(self) -> R:
        """Return the call's result, or raise its error.

        Raises:
            RpcError: the batch was not sent yet.
        """
        if not self._done:
            raise errors.RpcError(
                f"No result yet: the batch with {self.method} was not sent. Leave its with block "
                f"before you ask for the result.",
                service=self.method.service,
                method=self.method.name,
            )
        if self.error is not None:
            raise self.error
        return cast("R", self._value)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Record the call's result or error."""
        self._value, self.error, self._done = value, error, True


@dataclass(eq=False)
class Batch:
    """Calls that are sent in one request; made by `batch`."""

    target: CurrentSilo
    items: list[BatchItem[Any]] = field(default_factory=list)

    def call[**P, R](
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BatchItem[R]:
        """Add a call of a delegation's method: ``b.call(service.method, name=…)``.

        Raises:
            RpcTooLargeError: the batch already has 1,000 calls.
            RpcSetupError: `method` is not a method of a delegation, or it runs in another silo.
        """
        if len(self.items) >= MAX_CALLS:
            raise errors.RpcTooLargeError(
                f"Too many calls in a batch to {self.target}: at most {MAX_CALLS} are allowed. "
                f"Begin another batch.",
                silo=str(self.target),
            )
        rpc_method = method_of(method)
        if rpc_method is None or args:
            raise errors.RpcSetupError(
                f"Not an RPC method: {method!r}, or it has positional arguments. Pass a method of "
                f"a delegation, and its arguments by name."
            )
        silo = rpc_method.mark.silo
        if silo is not self.target.mode:
            raise errors.RpcSetupError(
                f"Wrong batch for {rpc_method}: it runs in {silo.name}, but the batch "
                f"goes to {self.target}. Use batch(cell=…) for a cell, batch() for control.",
                service=rpc_method.service,
                method=rpc_method.name,
                silo=str(self.target),
            )
        item: BatchItem[R] = BatchItem(rpc_method, rpc_method.bind(kwargs))
        self.items.append(item)
        return item

    def __enter__(self) -> Self:
        """Start to collect calls."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send the calls, unless the block raised."""
        if exc is None and self.items:
            self._run()

    def _run(self) -> None:
        if get_current_silo() == self.target:
            self._run_here()
        elif get_process_silo().mode is SiloMode.MONOLITH and not transport.is_overridden:
            with assume_silo(self.target.mode, cell=self.target.cell):
                self._run_here()
        else:
            self._send()

    def _run_here(self) -> None:
        for item in self.items:
            try:
                item.settle(call_here(item.method, item.args))
            except BaseException as exc:
                if is_own_stop(exc):
                    raise
                item.settle(error=exc)

    def _send(self) -> None:
        sent: list[BatchItem[Any]] = []
        lines: list[bytes] = []
        for item in self.items:
            try:
                lines.append(item.method.schema.dump_args(item.args))
            except errors.RpcValidationError as exc:
                item.settle(error=exc)
            else:
                sent.append(item)
        if not sent:
            return
        names = _NAMES.dump_json([str(item.method) for item in sent])
        head = b'{"meta":' + meta_for(self.target) + b',"calls":' + names + b"}"
        request = prepare(
            self.target, PATH, b"\n".join((head, *lines)), service="", method="a batch"
        )
        _settle(request, sent, exchange(request))


def _settle(request: Outgoing, sent: list[BatchItem[Any]], body: bytes) -> None:
    head, *lines = body.split(b"\n")
    try:
        ok = _REPLY_HEAD.validate_json(head, strict=True)["ok"]
    except ValidationError as exc:
        raise request.fail(errors.RpcRemoteError, "Unreadable reply.") from exc
    if not len(ok) == len(lines) == len(sent):
        raise request.fail(
            errors.RpcRemoteError, f"Unreadable reply: {len(lines)} results for {len(sent)} calls."
        )
    for item, good, line in zip(sent, ok, lines, strict=True):
        of_item = request.for_method(item.method.service, item.method.name)
        if not good:
            item.settle(error=refused(of_item, line, errors.RpcRemoteError.status))
            continue
        try:
            item.settle(item.method.schema.load_reply(line))
        except (errors.RpcBodyError, errors.RpcValidationError) as exc:
            item.settle(error=of_item.fail(errors.RpcRemoteError, f"Unreadable reply: {exc}"))


def batch(*, cell: str | None = None) -> Batch:
    """Collect calls, and send them as one request when the block ends.

        with batch(cell="eu") as b:
            renamed = b.call(organization_service.rename, organization_id=1, name="x")
        renamed.result()

    Calls run one after the other, in order; each has its own result or error.

    Args:
        cell: the cell in which all calls run; their arguments are not resolved. None: the control
            silo.

    Raises:
        RpcError: on leaving the block, if the whole request failed.
    """
    return Batch(CurrentSilo(SiloMode.CELL if cell else SiloMode.CONTROL, cell))
