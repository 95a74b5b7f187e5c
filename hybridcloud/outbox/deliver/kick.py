"""Wakes drainers after a commit.

For each outbox table a process sends at most one kick in 50 ms: the first at once, and another
at the end of the 50 ms if there was a commit in between, so that each commit is followed by one.
"""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Final

from hybridcloud import hooks
from hybridcloud.outbox.store.session import Engine
from hybridcloud.registry import Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridcloud.outbox.store.tables import OutboxTable

_LOG = logging.getLogger(__name__)
EVERY: Final = 0.05


def _no_kick(outbox: type[OutboxTable], alias: str) -> None:
    _LOG.debug("No kick for %s on %s: no task queue is set up", outbox._meta.label, alias)


kicker: Slot[[type[OutboxTable], str], None] = Slot("what wakes a drainer", _no_kick)


class Throttle[K]:
    """Calls a function at most once per interval (in seconds) for each key.

    The first call is made at once; calls during the interval become one at its end.
    """

    def __init__(self, send: Callable[[K], None], *, every: float = EVERY) -> None:
        self._send = send
        self._every = every
        self._lock = threading.Lock()
        self._sent: dict[K, float] = {}
        self._waiting: set[K] = set()
        self._pid = os.getpid()

    def __call__(self, key: K) -> None:
        """Ask for a call."""
        # Held for the bookkeeping only: sending may take as long as a broker does.
        with self._lock:
            if self._pid != os.getpid():
                # A forked child does not have the parent's timers, so no call is pending there.
                self._waiting.clear()
                self._pid = os.getpid()
            if key in self._waiting:
                return
            left = self._sent.get(key, -self._every) + self._every - monotonic()
            if left > 0:
                self._waiting.add(key)
                timer = threading.Timer(left, self._late, (key,))
                timer.daemon = True
                timer.start()
                return
            self._sent[key] = monotonic()
        self._send(key)

    def _late(self, key: K) -> None:
        with self._lock:
            self._waiting.discard(key)
            self._sent[key] = monotonic()
        self._send(key)


def _send(target: tuple[type[OutboxTable], str]) -> None:
    outbox, alias = target
    try:
        kicker(outbox, alias)
    except Exception as exc:  # noqa: BLE001 - the edge of the process: a broker may fail in any way
        tags = {"outbox": outbox._meta.label}
        hooks.tell(hooks.active.captured, hooks.Captured(exc, "kick", tags))
        _LOG.warning("No kick for %s: %s", outbox._meta.label, exc)


_throttled: Throttle[tuple[type[OutboxTable], str]] = Throttle(_send)


def kick(outbox: type[OutboxTable], alias: str) -> None:
    """Wake a drainer of a table; never raises, as the next tick drains too."""
    # A test case's messages are rolled back: no drainer could see them.
    if not Engine(outbox, alias).in_testcase:
        _throttled((outbox, alias))
