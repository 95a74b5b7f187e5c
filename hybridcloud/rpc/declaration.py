"""The declaration of a service, read from its class once."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import RpcSetupError
from .method import declared_methods

if TYPE_CHECKING:
    from .service import RpcService


class Declaration:
    """A declared service: its silo, methods and local implementation.

    Attributes:
        key: the service's name on the wire.
        silo: the silo mode in which its methods run.
        methods: the declared methods, by name.
    """

    def __init__(self, cls: type[RpcService]) -> None:
        self.key = cls.key
        self.silo = cls.local_silo
        self.methods = MappingProxyType({m.name: m for m in declared_methods(self, cls)})
        self._class = cls
        self._local: RpcService | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{self._class.__module__}.{self._class.__qualname__}"

    @property
    def local(self) -> RpcService:
        """The local implementation, created and checked at first use.

        Raises:
            RpcSetupError: the implementation does not match the declaration.
        """
        if self._local is None:
            # Checked again under the lock: two threads that race here must share one instance.
            with self._lock:
                if self._local is None:
                    self._local = self._make_local()
        return self._local

    def _make_local(self) -> RpcService:
        made = self._class.get_local_implementation()
        if not isinstance(made, self._class) or type(made) is self._class:
            raise RpcSetupError(
                f"Wrong local implementation of service {self.key!r}: "
                f"get_local_implementation() returned {made!r}. Return an instance of a subclass "
                f"of {self._class.__qualname__}.",
                service=self.key,
            )
        for method in self.methods.values():
            method.check_implementation(made)
        return made
