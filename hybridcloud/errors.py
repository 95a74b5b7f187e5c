"""The errors of the framework: without this tree no caller could tell what went wrong, or whether to retry.

::

    HybridCloudError
    ├── ConfigurationError (ImproperlyConfigured)   a mistake in settings or declarations
    ├── RegistryError (ConfigurationError)          a name taken twice, or a registry already frozen
    ├── UnknownOptionError (LookupError)            a runtime option that nobody registered
    ├── OptionValueError (ValueError)               a value that a runtime option cannot have
    ├── IdentifierError (ValueError)                a message's shard or object cannot be told
    ├── OutboxError
    │   ├── InvalidOutboxError                      scope and category of a message do not fit
    │   ├── OutboxTransactionError                  an outbox call where a transaction forbids it
    │   ├── OutboxFlushError                        a handler failed; says its cause first
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
    """The base of all errors of the framework; never raised itself."""


class ConfigurationError(HybridCloudError, ImproperlyConfigured):
    """A setting or a declaration is wrong; the process should not start."""


class RegistryError(ConfigurationError):
    """A name was registered twice, or after the registry was frozen."""


class UnknownOptionError(HybridCloudError, LookupError):
    """No such runtime option is registered; the message names near ones."""


class OptionValueError(HybridCloudError, ValueError):
    """A runtime option cannot have this value: its type is wrong, or the settings pin it."""


class IdentifierError(HybridCloudError, ValueError):
    """The shard or object of a message cannot be inferred from its model."""


class OutboxError(HybridCloudError):
    """The base of what the outbox engine raises."""


class InvalidOutboxError(OutboxError):
    """A message's category does not belong to its scope, or is unknown."""


class OutboxTransactionError(OutboxError):
    """An outbox call was made inside, or outside, a transaction that it must not be in."""


class OutboxFlushError(OutboxError):
    """A handler failed while its message was drained.

    Attributes:
        outbox: the message that was handled, an unsaved-looking instance of
            its outbox model, for its columns.
        cause: the exception of the handler.
    """

    def __init__(
        self, message: str, outbox: Any = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(message)
        self.outbox = outbox
        self.cause = cause


class OutboxDatabaseError(OutboxError, DatabaseError):
    """The engine's own SQL failed while a shard was drained; never a handler's."""


class OutboxRecursionLimitError(OutboxError):
    """Messages keep producing messages beyond a limit.

    Attributes:
        chain: what kept coming, newest last, as ``Category.NAME`` texts.
    """

    def __init__(self, message: str, chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.chain = tuple(chain)
