"""`RpcService`, the base of services, and their delegations.

A subclass of `RpcService` declares a service, with a key and a silo. A subclass of that, the local
implementation, does the work in that silo. Callers import the delegation. It has the same methods
and runs each call where it belongs: locally in the service's own silo, with `assume_silo` if one
process is all silos, or else over HTTP.
"""

from __future__ import annotations

import inspect
import re
import types
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from hybridcloud.registry import Registry
from silos.errors import CellMappingNotFoundError
from silos.mode import CurrentSilo, SiloMode, assume_silo, get_current_silo, get_process_silo

from .client import call, transport
from .declaration import Declaration
from .errors import RpcSetupError
from .method import is_marked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .method import RpcMethod

_KEY = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
_METHOD = "_hybridcloud_method"

services: Registry[str, Declaration] = Registry("RPC service")


class RpcService(ABC):
    """The base of service declarations.

        class OrganizationService(RpcService):
            key = "organization"
            local_silo = SiloMode.CELL

            @cell_rpc_method(resolve=ByOrganizationId())
            @abstractmethod
            def rename(self, *, organization_id: int, name: str) -> bool: ...

            @classmethod
            def get_local_implementation(cls) -> OrganizationService:
                from .impl import DatabaseOrganizationService
                return DatabaseOrganizationService()

        organization_service = OrganizationService.create_delegation()

    Attributes:
        key: the service's name in URLs, in lower case; must not change once released.
        local_silo: where its methods run: `SiloMode.CONTROL` or `SiloMode.CELL`.
    """

    key: ClassVar[str]
    local_silo: ClassVar[SiloMode]
    declaration: ClassVar[Declaration]

    def __init_subclass__(cls, *, _delegates: bool = False, **kwargs: Any) -> None:
        """Check a declaration and register it by its key."""
        super().__init_subclass__(**kwargs)
        if _delegates:
            return
        if hasattr(cls, "declaration"):
            _check_subclass(cls)
            return
        _check_class(cls)
        declaration = Declaration(cls)
        for method in declaration.methods.values():
            method.check()
        services.add(cls.key, declaration)
        cls.declaration = declaration

    @classmethod
    @abstractmethod
    def get_local_implementation(cls) -> RpcService:
        """Return an instance of the subclass that does the work.

        Called once per process, and only where the methods run. Import the subclass inside this
        method, so that other silos do not import it.
        """

    @classmethod
    def create_delegation(cls) -> Self:
        """Return the object that callers use.

        Its methods run in the silo of the service.
        """

        def fill(namespace: dict[str, Any]) -> None:
            namespace.update({name: _delegating(m) for name, m in cls.declaration.methods.items()})
            namespace["__module__"] = cls.__module__

        name = f"{cls.__name__}Delegation"
        made = types.new_class(name, (cls,), {"_delegates": True}, fill)
        return cast("Self", made())


def find_method(service_key: str, method_name: str) -> RpcMethod | None:
    """Return a declared method, or None."""
    declaration = services.get(service_key)
    return declaration.methods.get(method_name) if declaration else None


def check_all() -> None:
    """Build every schema and check the implementations of this process.

    Called when the apps are ready.

    Raises:
        RpcSetupError: the first mistake; the message names service, method and parameter.
    """
    mode = get_process_silo().mode
    for declaration in services.values():
        for method in declaration.methods.values():
            _ = method.schema
        # Another silo's implementation may import modules that this process does not have.
        if mode in (SiloMode.MONOLITH, declaration.silo):
            _ = declaration.local


def find_target(method: RpcMethod, args: Mapping[str, Any]) -> CurrentSilo:
    """Return the silo in which a call runs.

    Raises:
        CellMappingNotFoundError: no cell is known for these arguments.
    """
    resolve = method.mark.resolve
    if resolve is None:
        return CurrentSilo(SiloMode.CONTROL)
    try:
        return CurrentSilo(SiloMode.CELL, resolve.find_cell(args))
    except CellMappingNotFoundError as exc:
        exc.add_note(f"While looking up the cell of a call of {method}.")
        raise


def run_local(method: RpcMethod, args: Mapping[str, Any]) -> Any:
    """Run a method in the current silo, on this thread."""
    return getattr(method.declaration.local, method.name)(**args)


def call_here(method: RpcMethod, args: Mapping[str, Any]) -> Any:
    """Call a method in the current silo, through JSON if the transport asks."""
    if not transport.round_trips_local_calls:
        return run_local(method, args)
    # In tests, a value that cannot be sent must fail even if the target is the current silo.
    sent = method.schema.load_args(method.schema.dump_args(args))
    return method.schema.load_reply(method.schema.dump_reply(run_local(method, sent)))


def method_of(function: Callable[..., Any]) -> RpcMethod | None:
    """Return the RPC method behind a delegation's method, or None."""
    return getattr(function, _METHOD, None)


def _delegating(method: RpcMethod) -> Callable[..., Any]:
    def delegate(self: RpcService, **arguments: Any) -> Any:  # noqa: ARG001
        args = method.bind(arguments)
        try:
            target = find_target(method, args)
        except CellMappingNotFoundError:
            if method.mark.none_if_unmapped:
                return None
            raise
        if get_current_silo() == target:
            return call_here(method, args)
        if get_process_silo().mode is SiloMode.MONOLITH and not transport.is_overridden:
            with assume_silo(target.mode, cell=target.cell):
                return call_here(method, args)
        return call(method, target, args)

    setattr(delegate, _METHOD, method)
    delegate.__name__ = method.name
    delegate.__qualname__ = f"{method.service}.{method.name}"
    delegate.__doc__ = method.doc
    return delegate


def _check_class(cls: type[RpcService]) -> None:
    key = cls.__dict__.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise RpcSetupError(
            f"Wrong key {key!r} of RPC service {cls.__qualname__}. Set key to a name of lower-case "
            f"letters, digits, - and _ that begins with a letter."
        )
    if cls.__dict__.get("local_silo") not in (SiloMode.CONTROL, SiloMode.CELL):
        raise RpcSetupError(
            f"No local silo of RPC service {key!r}. Set local_silo to SiloMode.CONTROL or "
            f"SiloMode.CELL.",
            service=key,
        )
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if getattr(member, "__isabstractmethod__", False) and not is_marked(member):
            advice = (
                "Define it to return an instance of the subclass that does the work"
                if name == "get_local_implementation"
                else "Decorate it with @rpc_method or @cell_rpc_method(resolve=…)"
            )
            raise RpcSetupError(
                f"Abstract method {name!r} of RPC service {key!r} is not an RPC method. {advice}.",
                service=key,
                method=name,
            )


def _check_subclass(cls: type[RpcService]) -> None:
    if "key" in cls.__dict__ or "local_silo" in cls.__dict__:
        raise RpcSetupError(
            f"Second key in {cls.__qualname__}, an implementation of RPC service {cls.key!r}. "
            f"Set key and local_silo only in the declaration.",
            service=cls.key,
        )
