"""The registry of declarations, and slots that upper layers fill."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hybridcloud.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Registry[K, V]:
    """Declarations by name; filled at import, frozen in ``AppConfig.ready``.

    Args:
        what: the name of an entry's kind in error messages, such as ``"RPC service"``.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[K, V] = {}
        self._frozen = False

    def add(self, key: K, value: V) -> None:
        """Add an entry; adding the same one again does nothing.

        Raises:
            RegistryError: the key has another entry, or the registry is frozen.
        """
        if self._entries.get(key) is value:
            return
        if key in self._entries:
            raise RegistryError(
                f"Duplicate {self._what} {key!r}: declared by {self._entries[key]!r} and again by "
                f"{value!r}. Give one of them another name."
            )
        if self._frozen:
            raise RegistryError(
                f"Late {self._what} {key!r}: the registry was frozen when the apps were ready. "
                f"Declare it at import time, in a module that an installed app imports."
            )
        self._entries[key] = value

    def freeze(self) -> None:
        """Refuse further entries; called when the apps are ready."""
        self._frozen = True

    @contextmanager
    def opened(self) -> Iterator[Registry[K, V]]:
        """Accept entries inside the block, then restore the state; for tests."""
        entries, frozen = dict(self._entries), self._frozen
        self._frozen = False
        try:
            yield self
        finally:
            self._entries, self._frozen = entries, frozen

    def get(self, key: K) -> V | None:
        """Return the key's entry, or None."""
        return self._entries.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def items(self) -> list[tuple[K, V]]:
        """Return all keys and entries, in the order of declaration."""
        return list(self._entries.items())

    def values(self) -> list[V]:
        """Return all entries, in the order of declaration."""
        return list(self._entries.values())


class Slot[**P, R]:
    """A slot for a function of an upper layer that a lower layer calls.

    The lower layer need not import the upper one.

    Args:
        what: what the slot is for; used in error messages.
        default: the function to call while the slot is empty.
    """

    def __init__(self, what: str, default: Callable[P, R]) -> None:
        self._what = what
        self._default = default
        self._function: Callable[P, R] | None = None

    def fill(self, function: Callable[P, R]) -> None:
        """Put a function into the slot.

        Raises:
            RegistryError: the slot holds another function.
        """
        if self._function is not None and self._function is not function:
            raise RegistryError(
                f"Slot taken: {self._what} is already {self._function!r}, not {function!r}. "
                f"Fill it only once."
            )
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in the slot, or the default."""
        return (self._function or self._default)(*args, **kwargs)


def _no_backfill(silo_mode: str, scheduled_count: int) -> bool:  # noqa: ARG001
    return False


def _never_broken(cell_name: str) -> bool:  # noqa: ARG001
    return False


backfill_outboxes = Slot("the function that a scheduler tick calls last", _no_backfill)
cell_is_broken = Slot("the breaker that says whether calls to a cell are stopped", _never_broken)
