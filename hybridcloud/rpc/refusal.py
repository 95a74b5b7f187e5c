"""How errors travel: kind, place and whether to retry; without it a reply could leak values, or say nothing.

Neither texts nor values nor tracebacks are sent, only what this file lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from pydantic import TypeAdapter
from pydantic_core import ValidationError

from . import errors
from .errors import Problem, RpcError


class _ProblemFields(TypedDict):
    at: list[str | int]
    kind: str


class _RefusalFields(TypedDict, total=False):
    kind: str
    problems: list[_ProblemFields]
    retryable: bool
    exception: str
    incident: str


class _ErrorReply(TypedDict):
    error: _RefusalFields


_REPLY = TypeAdapter(_ErrorReply)
_LEAVES: tuple[type[RpcError], ...] = (
    errors.RpcAuthenticationError,
    errors.RpcBodyError,
    errors.RpcNotFoundError,
    errors.RpcRemoteError,
    errors.RpcTooLargeError,
    errors.RpcUnavailableError,
    errors.RpcValidationError,
)
_BY_KIND = {leaf.kind: leaf for leaf in _LEAVES}
_BY_STATUS: dict[int, type[RpcError]] = {
    **{leaf.status: leaf for leaf in _LEAVES},
    # A proxy that finds no server behind it, or none that answers.
    502: errors.RpcUnavailableError,
    504: errors.RpcUnavailableError,
}
_SAID = {
    "authentication": "Signature not accepted.",
    "body": "Not a call, says the other silo.",
    "not_found": "Unknown service, method or silo there.",
    "remote": "The method raised in its silo.",
    "too_large": "Body larger than RPC_MAX_BYTES of the other silo.",
    "unavailable": "The silo is not available.",
    "validation": "Arguments do not fit, says the other silo.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as the wire tells it.

    Attributes:
        leaf: its class.
        said: what to say of it, cause first.
        retryable: whether the same call may succeed later.
        problems: what did not fit, and where.
        exception: name of the class that the method raised.
        incident: where to look it up in the logs of the other silo.
    """

    leaf: type[RpcError]
    said: str
    retryable: bool
    problems: tuple[Problem, ...] = ()
    exception: str = ""
    incident: str = ""


def dump_error(error: RpcError) -> bytes:
    """Write an error as the body of a reply; its text stays here."""
    fields: _RefusalFields = {"kind": error.kind, "retryable": error.retryable}
    if error.problems:
        fields["problems"] = [{"at": [*p.location], "kind": p.kind} for p in error.problems]
    if isinstance(error, errors.RpcRemoteError) and error.exception:
        fields["exception"], fields["incident"] = error.exception, error.incident
    return _REPLY.dump_json({"error": fields})


def load_error(body: bytes, status: int) -> Refusal:
    """Read an error that another silo answered with.

    What is not ours (a proxy's error page, a newer release's kind) is told by the status.
    """
    by_status = _BY_STATUS.get(status, errors.RpcRemoteError)
    try:
        fields = _REPLY.validate_json(body)["error"]
    except ValidationError:
        said = f"Status {status}, not from an RPC endpoint."
        return Refusal(by_status, said, retryable=by_status.retryable)
    leaf = _BY_KIND.get(fields.get("kind", ""), by_status)
    problems = tuple(Problem(tuple(p["at"]), p["kind"]) for p in fields.get("problems", ()))
    exception, incident = fields.get("exception", ""), fields.get("incident", "")
    parts = [_SAID[leaf.kind], *(f"{problem}." for problem in problems[:3])]
    if exception:
        parts.append(f"It was a {exception}; its silo's log has it as incident {incident}.")
    retryable = fields.get("retryable", leaf.retryable)
    return Refusal(leaf, " ".join(parts), retryable, problems, exception, incident)
