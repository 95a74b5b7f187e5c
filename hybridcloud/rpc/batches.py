"""Sends many calls to one silo as one request; without it replication would pay a round trip per row.

The body is JSON lines: first meta and the names of the methods, then the arguments of each call; the
reply likewise. So there is one signature, each byte is parsed once, and a call that does not fit
spoils no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from pydantic import TypeAdapter
from pydantic_core import ValidationError

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
    """One call of a batch; its outcome is known when the batch's block has ended.

    Attributes:
        error: why the call failed, or None.
    """

    method: RpcMethod
    args: Mapping[str, Any]
    error: Exception | None = None
    _value: Any = None
    _done: bool = False

    def result(self) -> R:
        """Return what the method returned, or raise its error."""
        if not self._done:
            raise errors.RpcError(
                f"No result yet: the batch with {self.method} was not sent. Leave its with block "
                f"first.",
                service=self.method.service,
                method=self.method.name,
            )
        if self.error is not None:
            raise self.error
        return cast("R", self._value)

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Record the outcome."""
        self._value, self.error, self._done = value, error, True


@dataclass(eq=False)
class Batch:
    """Calls that go together; made by `batch`."""

    target: CurrentSilo
    items: list[BatchItem[Any]] = field(default_factory=list)

    def call[**P, R](
        self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BatchItem[R]:
        """Add a call of a delegation's method, ``b.call(service.method, name=…)``.

        Raises:
            RpcTooLargeError: there are 1,000 calls already.
            RpcSetupError: not a method of a delegation, or one of another silo.
        """
        if len(self.items) >= MAX_CALLS:
            raise errors.RpcTooLargeError(
                f"Too many calls in a batch to {self.target}: at most {MAX_CALLS}. Begin another.",
                silo=str(self.target),
            )
        rpc_method = method_of(method)
        if rpc_method is None or args:
            raise errors.RpcSetupError(
                f"Not an RPC method: {method!r}. Give a method of a delegation, its arguments by "
                f"name."
            )
        silo = rpc_method.mark.silo
        if silo is not self.target.mode:
            raise errors.RpcSetupError(
                f"Wrong batch for {rpc_method}: it runs in {silo.name}, the batch "
                f"goes to {self.target}. Use batch(cell=…) for cells, batch() for control.",
                service=rpc_method.service,
                method=rpc_method.name,
                silo=str(self.target),
            )
        item: BatchItem[R] = BatchItem(rpc_method, rpc_method.bind(kwargs))
        self.items.append(item)
        return item

    def __enter__(self) -> Self:
        """Begin to collect calls."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send the calls; nothing is sent where the block raised."""
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
            except Exception as exc:  # noqa: BLE001  (one call's error is its own result)
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
    """Collect calls and send them as one request when the block ends.

        with batch(cell="eu") as b:
            renamed = b.call(organization_service.rename, organization_id=1, name="x")
        renamed.result()

    Calls run one after the other, in order; each has a result or an error of its own.

    Args:
        cell: the cell in which all calls run, whatever their arguments would resolve to; None: the
            control silo.

    Raises:
        RpcError: on leaving the block, when the whole request failed.
    """
    return Batch(CurrentSilo(SiloMode.CELL if cell else SiloMode.CONTROL, cell))
