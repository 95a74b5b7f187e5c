"""The current silo: the silo and cell in which the running code is.

The settings give the process its silo. A context variable overrides it, so that a test suite, a
laptop or an RPC call inside one process can enter another silo. This is safe with threads and
async: a new thread starts in the process's silo, an async task in the silo of its creator.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar, Token
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, cast

from .cells import get_cell
from .directory import Directory, directory
from .errors import UnknownCellError, near_matches

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class SiloMode(StrEnum):
    """The kind of a silo: everything in one, the control silo, or a cell."""

    MONOLITH = "MONOLITH"
    CONTROL = "CONTROL"
    CELL = "CELL"


@dataclass(frozen=True, slots=True)
class CurrentSilo:
    """The silo and cell in which code runs.

    Attributes:
        mode: The kind of silo.
        cell: The cell: always set in CELL, never in CONTROL, and in MONOLITH if one is known.
    """

    mode: SiloMode
    cell: str | None = None

    def __str__(self) -> str:
        """Return the silo's name as error messages write it."""
        if self.mode is SiloMode.CONTROL:
            return "the control silo"
        if self.mode is SiloMode.CELL:
            return f"cell {self.cell!r}" if self.cell else "a cell"
        return f"the monolith in cell {self.cell!r}" if self.cell else "the monolith"


_assumed: ContextVar[CurrentSilo | None] = ContextVar("silos_assumed", default=None)


def get_current_silo() -> CurrentSilo:
    """Return the silo and cell in which the caller runs."""
    return _assumed.get() or _process_silo(directory())


def get_assumed_silo() -> CurrentSilo | None:
    """Return the silo entered with `assume_silo`; None if there is none."""
    return _assumed.get()


def get_process_silo() -> CurrentSilo:
    """Return the process's silo by the settings, ignoring `assume_silo`."""
    return _process_silo(directory())


def current_cell_name() -> str | None:
    """Return the current cell's name; None in control or if none is known."""
    return get_current_silo().cell


@lru_cache(maxsize=4)
def _process_silo(known: Directory) -> CurrentSilo:
    return CurrentSilo(SiloMode(known.mode), known.cell)


class assume_silo:  # noqa: N801  (used like a function, as contextlib's own classes are)
    """Run a block, or each call of a function, in a silo.

    Blocks can be nested; each restores the silo of before when it ends.

        with assume_silo(SiloMode.CELL, cell="eu"):
            ...

        @assume_silo(SiloMode.CONTROL)
        def bill() -> None: ...

    Args:
        mode: The silo to enter.
        cell: Its cell. If omitted, CELL uses the current cell, or else the only one; MONOLITH
            uses the process's default. CONTROL has no cell.

    Raises:
        UnknownCellError: On entering: there is no such cell, or none was given and it is not
            clear which one is meant.
        ValueError: A cell was given for the control silo.
    """

    def __init__(self, mode: SiloMode | str, *, cell: str | None = None) -> None:
        self._mode = SiloMode(mode)
        self._cell = cell
        self._tokens: list[Token[CurrentSilo | None]] = []
        if self._mode is SiloMode.CONTROL and cell is not None:
            msg = f"The control silo has no cell, but {cell!r} was given. Leave it out."
            raise ValueError(msg)

    def __enter__(self) -> CurrentSilo:
        """Enter the silo and return it."""
        # The cell is looked up here, not in __init__: a decorator runs before settings are ready.
        entered = CurrentSilo(self._mode, _cell_to_enter(self._mode, self._cell))
        self._tokens.append(_assumed.set(entered))
        return entered

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Return to the previous silo."""
        _assumed.reset(self._tokens.pop())

    def __call__[**P, R](self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or coroutine function."""
        # Each call enters a context of its own, because calls of one function may overlap.
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def in_silo_async(*args: Any, **kwargs: Any) -> Any:
                with assume_silo(self._mode, cell=self._cell):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", in_silo_async)

        @wraps(function)
        def in_silo(*args: P.args, **kwargs: P.kwargs) -> R:
            with assume_silo(self._mode, cell=self._cell):
                return function(*args, **kwargs)

        return in_silo


def _cell_to_enter(mode: SiloMode, cell: str | None) -> str | None:
    if mode is SiloMode.CONTROL:
        return None
    if cell is not None:
        return get_cell(cell).name
    known = directory()
    if mode is SiloMode.MONOLITH:
        return known.cell
    current = get_current_silo().cell or known.cell
    if current is not None:
        return current
    if len(known.cells) == 1:
        return known.cells[0].name
    names = [each.name for each in known.cells]
    msg = f"No cell was given to assume_silo(CELL, cell=…). {near_matches('', names)}"
    raise UnknownCellError(msg)
