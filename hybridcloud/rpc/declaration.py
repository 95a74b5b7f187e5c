"""What is known of one declared service; without it each call would search the class anew."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import RpcSetupError
from .method import declared_methods

if TYPE_CHECKING:
    from .service import RpcService


class Declaration:
    """A declared service: its silo, its methods, and the object that does the work here.

    Attributes:
        key: the service's name on the wire.
        silo: where its methods run.
        methods: the declared methods by name.
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
        """The object that does the work, made and checked at first use.

        Raises:
            RpcSetupError: it does not fit the declaration.
        """
        if self._local is None:
            # One instance per process, whichever threads ask first.
            with self._lock:
                if self._local is None:
                    self._local = self._make_local()
        return self._local

    def _make_local(self) -> RpcService:
        made = self._class.get_local_implementation()
        if not isinstance(made, self._class) or type(made) is self._class:
            raise RpcSetupError(
                f"Wrong local implementation of service {self.key!r}: "
                f"get_local_implementation() gave {made!r}. Return an instance of a subclass of "
                f"{self._class.__qualname__}.",
                service=self.key,
            )
        for method in self.methods.values():
            method.check_implementation(made)
        return made
