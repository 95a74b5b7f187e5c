"""Wakes drainers after a commit.

Thousands of commits a second wake a drainer tens of times: a process sends at
most one kick in 50 ms for each outbox table, the first at once and the last at
the end, so that no commit goes unseen.
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
    """Calls a function for a key at once, and at most once in a while.

    Asked again meanwhile, it calls once more at the end, so that no request is lost.

    Args:
        send: what to call with the key.
        every: seconds between two calls for one key.
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
        with self._lock:
            if self._pid != os.getpid():
                # A timer does not live on in a forked child, so nothing waits there.
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
    """Wake a drainer for an outbox table; never raises.

    Where no wake-up arrives, the next tick finds the messages.
    """
    if not Engine(outbox, alias).in_testcase:
        _throttled((outbox, alias))
