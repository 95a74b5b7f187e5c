"""The exceptions of RPC; each says whether a retry may succeed.

::

    RpcError (HybridCloudError)
    ├── RpcSetupError (ConfigurationError)   a mistake in a declaration or setting; never on the wire
    ├── RpcAuthenticationError  403          wrong signature, secret or clock
    ├── RpcNotFoundError        404          unknown service, method or silo (LookupError)
    ├── RpcValidationError      422          an argument or result of the wrong type (ValueError)
    ├── RpcBodyError            400          the body is not a call (ValueError)
    ├── RpcTooLargeError        413          the body is larger than RPC_MAX_BYTES
    ├── RpcRemoteError          500          the method raised, or the reply is unreadable
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
    """One invalid part of a call or reply: where and why, never the value.

    Attributes:
        location: the path to it: field names, indexes, and ``*`` for keys chosen by the caller.
        kind: pydantic's error type, or one of the framework's own.
    """

    location: tuple[str | int, ...]
    kind: str

    def __str__(self) -> str:
        path = ".".join(map(str, self.location))
        return f"{path}: {self.kind}" if path else self.kind


class RpcError(HybridCloudError):
    """The base of the exceptions that RPC raises.

    Attributes:
        service: key of the service.
        method: name of the method.
        silo: the silo that was called, in words.
        retryable: whether the same call may succeed later.
        problems: the invalid parts of the call or reply.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "rpc"
    retryable: bool = False

    # The message is the only positional argument, so that the error can be unpickled.
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
    """A service's declaration is wrong, or a setting of RPC is missing."""

    kind = "setup"


class RpcAuthenticationError(RpcError):
    """The other silo does not accept the signature, its secret or its time."""

    status = 403
    kind = "authentication"


class RpcNotFoundError(RpcError, LookupError):
    """The called silo has no such service or method, or is the wrong silo."""

    status = 404
    kind = "not_found"


class RpcValidationError(RpcError, ValueError):
    """An argument or a result does not have its declared type.

    `problems` says where and how.
    """

    status = 422
    kind = "validation"


class RpcBodyError(RpcError, ValueError):
    """The body of a request or reply is malformed.

    It is not JSON, nested too deeply, or has no arguments or result.
    """

    status = 400
    kind = "body"


class RpcTooLargeError(RpcError):
    """A request is larger than its silo's ``RPC_MAX_BYTES``.

    Also raised for a batch of too many calls.
    """

    status = 413
    kind = "too_large"


class RpcRemoteError(RpcError):
    """The method raised in its silo, or the silo's reply is unreadable.

    The other silo captures the exception and does not send it.

    Attributes:
        exception: name of the exception's class, if the method raised.
        incident: the incident to look up in the other silo's logs.
    """

    exception: str = ""
    incident: str = ""
    status = 500
    kind = "remote"


class RpcUnavailableError(RpcError):
    """The silo cannot be reached or does not answer, or its breaker is open."""

    status = 503
    kind = "unavailable"
    retryable = True
