"""Stops calls to a silo that is away; without it every drainer would wait for a dead cell, again and again.

One breaker per silo and process. It opens after some unavailable answers in a row; after a rest it
lets one call try, and closes when that call is answered.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hybridcloud.registry import cell_is_broken

if TYPE_CHECKING:
    from collections.abc import Callable

#: Unavailable answers in a row that open a breaker.
FAILURES_TO_OPEN = 5
#: Seconds that an open breaker rests before it lets a call try.
REST_S = 10.0


class Breaker:
    """Whether calls to one silo are let through.

    Args:
        clock: seconds, growing; `time.monotonic` unless a test moves time.
        failures: unavailable answers in a row that open it.
        rest_s: seconds until one call may try.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        failures: int = FAILURES_TO_OPEN,
        rest_s: float = REST_S,
    ) -> None:
        self._clock = clock
        self._limit = failures
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._failed = 0
        self._closed_until_s: float | None = None

    def is_open(self) -> bool:
        """Say whether a call would be stopped now; takes nobody's turn to try."""
        with self._lock:
            return self._is_resting()

    def admit(self) -> bool:
        """Say whether this call may go; in a half-open breaker only the first one may."""
        with self._lock:
            if self._is_resting():
                return False
            if self._closed_until_s is not None:
                # The next try comes after another rest, so one that never reports blocks nobody.
                self._closed_until_s = self._clock() + self._rest_s
            return True

    def record_answer(self) -> None:
        """Note that the silo answered, whatever it said."""
        with self._lock:
            self._failed = 0
            self._closed_until_s = None

    def record_unavailable(self) -> None:
        """Note that the silo could not be reached."""
        with self._lock:
            self._failed += 1
            if self._failed >= self._limit:
                self._closed_until_s = self._clock() + self._rest_s

    def _is_resting(self) -> bool:
        return self._closed_until_s is not None and self._clock() < self._closed_until_s


class Breakers:
    """The breakers of this process, by silo; ``control`` or the name of a cell."""

    def __init__(self, make: Callable[[], Breaker] = Breaker) -> None:
        self._make = make
        self._by_silo: dict[tuple[str, str | None], Breaker] = {}

    def of(self, mode: str, cell: str | None) -> Breaker:
        """Return the breaker of a silo."""
        # setdefault is atomic: two threads that meet here get the same one.
        return self._by_silo.get((mode, cell)) or self._by_silo.setdefault(
            (mode, cell), self._make()
        )

    def is_cell_broken(self, cell_name: str) -> bool:
        """Say whether calls to the cell are stopped now."""
        found = self._by_silo.get(("CELL", cell_name))
        return found is not None and found.is_open()

    def reset(self) -> None:
        """Forget everything, as a new process would."""
        self._by_silo.clear()


breakers = Breakers()


def _is_cell_broken(cell_name: str) -> bool:
    return breakers.is_cell_broken(cell_name)


def fill_slot() -> None:
    """Let the engine ask the breakers, through the registry; called when the apps are ready."""
    cell_is_broken.fill(_is_cell_broken)
