"""The errors of RPC: without them a caller could not tell a refusal from a silo that is away, or whether to retry.

::

    RpcError (HybridCloudError)
    ├── RpcSetupError (ConfigurationError)   a mistake in a declaration or setting; never on the wire
    ├── RpcAuthenticationError  403          signature, secret or clock
    ├── RpcNotFoundError        404          service, method or silo (LookupError)
    ├── RpcValidationError      422          an argument or a result does not fit (ValueError)
    ├── RpcBodyError            400          the body is no call at all
    ├── RpcTooLargeError        413          the body is over RPC_MAX_BYTES
    ├── RpcRemoteError          500          the method raised, or its silo answered nonsense
    └── RpcUnavailableError     503          the silo cannot be reached; retryable
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybridcloud.errors import ConfigurationError, HybridCloudError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit: where and of what kind, never the value.

    Attributes:
        location: the path to it; names of fields, indexes, and ``*`` for what the caller named.
        kind: pydantic's error type, or one of our own.
    """

    location: tuple[str | int, ...]
    kind: str

    def __str__(self) -> str:
        path = ".".join(map(str, self.location))
        return f"{path}: {self.kind}" if path else self.kind


class RpcError(HybridCloudError):
    """The base of what a call may raise.

    Attributes:
        service: key of the service.
        method: name of the method.
        silo: the silo that was called, in words.
        retryable: whether the same call may succeed later.
        problems: what does not fit, and where.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "rpc"
    retryable: bool = False

    # The message stays the only positional argument, so that the error survives pickling.
    def __init__(
        self,
        message: str,
        *,
        service: str = "",
        method: str = "",
        silo: str = "",
        retryable: bool | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(message)
        self.service = service
        self.method = method
        self.silo = silo
        self.problems = tuple(problems)
        if retryable is not None:
            self.retryable = retryable


class RpcSetupError(RpcError, ConfigurationError):
    """A service is declared wrongly, or a setting that RPC needs is missing."""

    kind = "setup"


class RpcAuthenticationError(RpcError):
    """The other silo does not accept the signature, its secret or its time."""

    status = 403
    kind = "authentication"


class RpcNotFoundError(RpcError, LookupError):
    """The other silo has no such service or method, or is another silo than the one meant."""

    status = 404
    kind = "not_found"


class RpcValidationError(RpcError, ValueError):
    """An argument does not fit the declaration; `problems` says where and how."""

    status = 422
    kind = "validation"


class RpcBodyError(RpcError, ValueError):
    """The body of a request is no call: not JSON, nested too deeply, without arguments."""

    status = 400
    kind = "body"


class RpcTooLargeError(RpcError):
    """A request is larger than ``RPC_MAX_BYTES`` of the silo that it goes to."""

    status = 413
    kind = "too_large"


class RpcRemoteError(RpcError):
    """The method raised in its silo, which captured the exception and did not send it.

    Attributes:
        exception: name of the class that was raised, if one was.
        incident: what to look for in the logs of the other silo.
    """

    exception: str = ""
    incident: str = ""
    status = 500
    kind = "remote"


class RpcUnavailableError(RpcError):
    """The silo cannot be reached, does not answer in time, or is known to be away."""

    status = 503
    kind = "unavailable"
    retryable = True
