"""Circuit breakers that stop calls to unavailable silos.

Each process has one breaker per silo. It opens after several consecutive failures to reach the
silo. After a rest, one call is let through as a probe; if it is answered, the breaker closes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from hybridcloud.registry import cell_is_broken

if TYPE_CHECKING:
    from collections.abc import Callable

#: Consecutive failures to reach a silo that open its breaker.
FAILURES_TO_OPEN = 5
#: Seconds that an open breaker rests before it lets a probe through.
REST_S = 10.0


class Breaker:
    """The circuit breaker of one silo; safe to use from several threads.

    Args:
        clock: returns seconds that never decrease; `time.monotonic`, except in tests.
        failures: consecutive failures to reach the silo that open the breaker.
        rest_s: seconds that the open breaker rests before it lets a probe through.
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
        """Return whether a call would be stopped now; uses up no probe."""
        with self._lock:
            return self._is_resting()

    def admit(self) -> bool:
        """Return whether this call may proceed; after a rest only one may."""
        with self._lock:
            if self._is_resting():
                return False
            if self._closed_until_s is not None:
                # Rest again until the probe reports; one that never does blocks no later probe.
                self._closed_until_s = self._clock() + self._rest_s
            return True

    def record_answer(self) -> None:
        """Record that the silo answered, with a result or an error."""
        with self._lock:
            self._failed = 0
            self._closed_until_s = None

    def record_unavailable(self) -> None:
        """Record that the silo could not be reached."""
        with self._lock:
            self._failed += 1
            if self._failed >= self._limit:
                self._closed_until_s = self._clock() + self._rest_s

    def _is_resting(self) -> bool:
        return self._closed_until_s is not None and self._clock() < self._closed_until_s


class Breakers:
    """The breakers of this process, by silo mode and cell."""

    def __init__(self, make: Callable[[], Breaker] = Breaker) -> None:
        self._make = make
        self._by_silo: dict[tuple[str, str | None], Breaker] = {}

    def of(self, mode: str, cell: str | None) -> Breaker:
        """Return the breaker of a silo."""
        # setdefault is atomic: two threads that race here get the same breaker.
        return self._by_silo.get((mode, cell)) or self._by_silo.setdefault(
            (mode, cell), self._make()
        )

    def is_cell_broken(self, cell_name: str) -> bool:
        """Return whether calls to the cell are stopped now."""
        found = self._by_silo.get(("CELL", cell_name))
        return found is not None and found.is_open()

    def reset(self) -> None:
        """Discard all breakers, so that calls start with closed ones."""
        self._by_silo.clear()


breakers = Breakers()


def _is_cell_broken(cell_name: str) -> bool:
    return breakers.is_cell_broken(cell_name)


def fill_slot() -> None:
    """Let the engine query the breakers through the registry's slot.

    Called when the apps are ready.
    """
    cell_is_broken.fill(_is_cell_broken)
