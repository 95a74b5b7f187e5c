"""The wire format of errors: kind, problems and whether to retry.

Messages, values and tracebacks are never sent, only the fields that this module defines.
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
    # From a proxy whose upstream server is down or does not answer.
    502: errors.RpcUnavailableError,
    504: errors.RpcUnavailableError,
}
_SAID = {
    "authentication": "The other silo did not accept the signature.",
    "body": "The other silo could not read the request.",
    "not_found": "Unknown service, method or silo in the other silo.",
    "remote": "The method raised in its silo.",
    "too_large": "The body is larger than RPC_MAX_BYTES of the other silo.",
    "unavailable": "The silo is not available.",
    "validation": "The other silo refused the arguments.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that was read from a reply.

    Attributes:
        leaf: the class of the error to raise.
        said: its message, cause first.
        retryable: whether the same call may succeed later.
        problems: the invalid parts of the call.
        exception: name of the class that the method raised.
        incident: the incident to look up in the other silo's logs.
    """

    leaf: type[RpcError]
    said: str
    retryable: bool
    problems: tuple[Problem, ...] = ()
    exception: str = ""
    incident: str = ""


def dump_error(error: RpcError) -> bytes:
    """Write an error, except its message, as the body of a reply."""
    fields: _RefusalFields = {"kind": error.kind, "retryable": error.retryable}
    if error.problems:
        fields["problems"] = [{"at": [*p.location], "kind": p.kind} for p in error.problems]
    if isinstance(error, errors.RpcRemoteError) and error.exception:
        fields["exception"], fields["incident"] = error.exception, error.incident
    return _REPLY.dump_json({"error": fields})


def load_error(body: bytes, status: int) -> Refusal:
    """Read the error with which another silo answered.

    For an unknown body (a proxy's error page) or kind (of a newer release), the status decides.
    """
    by_status = _BY_STATUS.get(status, errors.RpcRemoteError)
    try:
        fields = _REPLY.validate_json(body)["error"]
    except ValidationError:
        said = f"Status {status}, but not from an RPC endpoint."
        return Refusal(by_status, said, retryable=by_status.retryable)
    leaf = _BY_KIND.get(fields.get("kind", ""), by_status)
    problems = tuple(Problem(tuple(p["at"]), p["kind"]) for p in fields.get("problems", ()))
    exception, incident = fields.get("exception", ""), fields.get("incident", "")
    parts = [_SAID[leaf.kind], *(f"{problem}." for problem in problems[:3])]
    if exception:
        parts.append(f"The exception was {exception}; see incident {incident} in that silo's log.")
    retryable = fields.get("retryable", leaf.retryable)
    return Refusal(leaf, " ".join(parts), retryable, problems, exception, incident)
