"""The declared methods of a service class, and their checks.

What does not depend on types is checked when the class is created. The types, which may be
postponed annotations, are checked when the apps are ready or at the first call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic.errors import PydanticUserError

from silos.mode import SiloMode

from .errors import RpcSetupError
from .schema import MethodSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .declaration import Declaration
    from .resolve import CellResolution

_MARK = "_hybridcloud_rpc"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a decorator declares about a method.

    Attributes:
        silo: the silo mode in which the method runs.
        resolve: the rule that finds the cell; None for control.
        none_if_unmapped: whether the result is None if no cell is known.
    """

    silo: SiloMode
    resolve: CellResolution | None = None
    none_if_unmapped: bool = False


def rpc_method[F: Callable[..., Any]](function: F) -> F:
    """Declare an abstract method that runs in the control silo."""
    setattr(function, _MARK, Mark(SiloMode.CONTROL))
    return function


def cell_rpc_method[F: Callable[..., Any]](
    *, resolve: CellResolution, return_none_if_mapping_not_found: bool = False
) -> Callable[[F], F]:
    """Declare an abstract method that runs in the cell of its arguments.

    Args:
        resolve: the rule that finds the cell from the arguments.
        return_none_if_mapping_not_found: return None, without a call, if no cell is known.
    """
    mark = Mark(SiloMode.CELL, resolve, return_none_if_mapping_not_found)

    def declare(function: F) -> F:
        setattr(function, _MARK, mark)
        return function

    return declare


class RpcMethod:
    """One declared method of a service.

    Attributes:
        declaration: the service that it belongs to.
        name: name of the method.
        mark: what its decorator declares.
        signature: its parameters, except self.
    """

    def __init__(
        self, declaration: Declaration, name: str, function: Callable[..., Any], mark: Mark
    ) -> None:
        self.declaration = declaration
        self.name = name
        self.mark = mark
        self.doc = function.__doc__
        self._function = function
        whole = inspect.signature(function)
        self.signature = whole.replace(parameters=[*whole.parameters.values()][1:])
        self._required = {n for n, p in self.signature.parameters.items() if p.default is p.empty}

    @property
    def service(self) -> str:
        """Key of the service."""
        return self.declaration.key

    def __str__(self) -> str:
        return f"{self.service}.{self.name}"

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call, including the defaults.

        Raises:
            TypeError: an argument is missing or unknown, as for any Python function.
        """
        parameters = self.signature.parameters
        if not parameters.keys() >= arguments.keys() >= self._required:
            # Raises Python's own message; too slow to call for valid arguments as well.
            self.signature.bind(**arguments)
        return {n: arguments.get(n, p.default) for n, p in parameters.items()}

    @cached_property
    def schema(self) -> MethodSchema:
        """The method's types, resolved at first use.

        Raises:
            RpcSetupError: a type is unknown or cannot be sent; the message names the service, the
                method and the parameter.
        """
        parameters = self.signature.parameters
        types = {name: self._type_of(name, f"parameter {name!r}") for name in parameters}
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        result = self._type_of("return", "the result")
        for name, type_ in (*types.items(), ("the result", result)):
            # One by one, so that the error can name the parameter.
            try:
                MethodSchema(str(self), {}, {}, type_)
            except (RpcSetupError, PydanticUserError, TypeError) as exc:
                what = name if name == "the result" else f"parameter {name!r}"
                raise self._mistake(f"{what} has a type that cannot be sent: {exc}") from exc
        return MethodSchema(str(self), types, defaults, result)

    def _type_of(self, name: str, what: str) -> Any:
        holder = SimpleNamespace(__annotations__={name: self._annotation(name)})
        try:
            return get_type_hints(holder, self._function.__globals__, None, include_extras=True)[
                name
            ]
        except NameError as exc:
            raise self._mistake(
                f"{what} has the annotation {self._annotation(name)!r}, but {exc.name!r} is not "
                f"defined. Import it at the top of the module, outside TYPE_CHECKING"
            ) from exc

    def _annotation(self, name: str) -> Any:
        if name == "return":
            return self.signature.return_annotation
        return self.signature.parameters[name].annotation

    def check(self) -> None:
        """Check everything except the types.

        Raises:
            RpcSetupError: a mistake in the declaration.
        """
        local_silo = self.declaration.silo
        if self.name.startswith("_"):
            raise self._mistake("its name begins with an underscore. Rename it")
        if self.mark.silo is not local_silo:
            fit = "rpc_method" if local_silo is SiloMode.CONTROL else "cell_rpc_method(resolve=…)"
            raise self._mistake(
                f"wrong decorator for a service of {local_silo.name}. Use @{fit} instead"
            )
        if not getattr(self._function, "__isabstractmethod__", False):
            raise self._mistake(
                "it is not abstract. Add @abstractmethod, and implement it in the local "
                "implementation"
            )
        if inspect.iscoroutinefunction(self._function):
            raise self._mistake("it is a coroutine function. Declare a synchronous one")
        for name, parameter in self.signature.parameters.items():
            self._check_parameter(name, parameter)
        if self.signature.return_annotation is inspect.Signature.empty:
            raise self._mistake("its result has no annotation. Annotate it, even if it is None")
        read = self.mark.resolve.parameter if self.mark.resolve else None
        if read is not None and read not in self.signature.parameters:
            raise self._mistake(
                f"{self.mark.resolve!r} reads the parameter {read!r}, which the method does not "
                f"have. Add or rename it"
            )

    def _check_parameter(self, name: str, parameter: inspect.Parameter) -> None:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise self._mistake(f"parameter {name!r} is not keyword-only. Put it after a *")
        if name.startswith("_"):
            raise self._mistake(f"parameter {name!r} begins with an underscore. Rename it")
        if parameter.annotation is inspect.Parameter.empty:
            raise self._mistake(f"parameter {name!r} has no annotation. Annotate it")

    def check_implementation(self, implementation: object) -> None:
        """Check that an implementation can be called as declared.

        Raises:
            RpcSetupError: it lacks the method, or the parameters differ.
        """
        function = getattr(type(implementation), self.name)
        where = f"{type(implementation).__qualname__}"
        if getattr(function, "__isabstractmethod__", False):
            raise self._mistake(f"its implementation {where} does not define it. Define it there")
        theirs = dict([*inspect.signature(function).parameters.items()][1:])
        declared = self.signature.parameters
        for name in (*declared, *theirs):
            if name not in theirs or name not in declared:
                has, lacks = ("declaration", where) if name in declared else (where, "declaration")
                raise self._mistake(
                    f"different parameters: {name!r} is in the {has} but not in the {lacks}. "
                    f"Make both the same"
                )
            if theirs[name].kind not in {
                inspect.Parameter.KEYWORD_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
            }:
                raise self._mistake(
                    f"parameter {name!r} cannot be passed to {where} by name. Make it keyword-only"
                )

    def _mistake(self, what: str) -> RpcSetupError:
        return RpcSetupError(
            f"Wrong RPC method {self.name!r} of service {self.service!r}: {what}.",
            service=self.service,
            method=self.name,
        )


def is_marked(function: object) -> bool:
    """Return whether the function has one of the decorators of RPC methods."""
    return hasattr(function, _MARK)


def declared_methods(declaration: Declaration, cls: type) -> Iterator[RpcMethod]:
    """Yield the marked methods of a class and its bases."""
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        mark = getattr(function, _MARK, None)
        if mark is not None and inspect.isfunction(function):
            yield RpcMethod(declaration, name, function, mark)
