"""The exceptions of the framework.

::

    HybridCloudError
    ├── ConfigurationError (ImproperlyConfigured)   a mistake in settings or declarations
    ├── RegistryError (ConfigurationError)          a name taken twice, or a registry already frozen
    ├── UnknownOptionError (LookupError)            a runtime option that is not registered
    ├── OptionValueError (ValueError)               a value that a runtime option cannot have
    ├── IdentifierError (ValueError)                a message's shard or object cannot be inferred
    ├── OutboxError
    │   ├── InvalidOutboxError                      a message's category is not in its scope
    │   ├── OutboxTransactionError                  an outbox call where a transaction forbids it
    │   ├── OutboxFlushError                        a handler failed; the message begins with the cause
    │   ├── OutboxDatabaseError (DatabaseError)     the engine's own SQL failed
    │   └── OutboxRecursionLimitError               messages keep coming, or a causal chain is too deep
    └── RpcError                                    in ``hybridcloud.rpc.errors``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence


class HybridCloudError(Exception):
    """The base of all exceptions of the framework; not raised directly."""


class ConfigurationError(HybridCloudError, ImproperlyConfigured):
    """A setting or a declaration is wrong; the process should not start."""


class RegistryError(ConfigurationError):
    """A name was registered twice, or after the registry was frozen."""


class UnknownOptionError(HybridCloudError, LookupError):
    """The runtime option is not registered; the message lists near matches."""


class OptionValueError(HybridCloudError, ValueError):
    """A runtime option cannot have this value.

    The value has the wrong type, or the settings pin the option.
    """


class IdentifierError(HybridCloudError, ValueError):
    """The shard or object of a message cannot be inferred from its model."""


class OutboxError(HybridCloudError):
    """The base of the exceptions of the outbox engine."""


class InvalidOutboxError(OutboxError):
    """A message's category does not belong to its scope, or is unknown."""


class OutboxTransactionError(OutboxError):
    """An outbox call was made inside, or outside, the wrong transaction."""


class OutboxFlushError(OutboxError):
    """A handler failed while its message was drained.

    Attributes:
        outbox: the message, as an instance of its outbox model with no row
            behind it; use it only to read the columns.
        cause: the handler's exception.
    """

    def __init__(
        self, message: str, outbox: Any = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.outbox = outbox
        self.cause = cause


class OutboxDatabaseError(OutboxError, DatabaseError):
    """The engine's own SQL, not a handler's, failed during a drain."""


class OutboxRecursionLimitError(OutboxError):
    """Messages keep producing messages beyond a limit.

    Attributes:
        chain: the categories that keep coming, newest last, as ``Category.NAME``.
    """

    def __init__(self, message: str, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain = tuple(chain)
