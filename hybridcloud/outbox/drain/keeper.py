"""Renews leases while a handler runs long: without it a handler that takes longer than its lease would run twice."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connections

from hybridcloud.conf import settings
from hybridcloud.outbox.store.session import Engine, Key

if TYPE_CHECKING:
    from hybridcloud.outbox.drain.lease import Leases

_LOG = logging.getLogger(__name__)


class Keeper:
    """Renews leases of handlers that run long: one daemon thread per process, on its own connection.

    A handler that runs longer than its ``HANDLER_TIMEOUT`` is renewed no more:
    a hung handler loses its shard.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._passes: set[Leases] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, leases: Leases) -> None:
        """Watch a pass."""
        with self._lock:
            self._passes.add(leases)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="hybridcloud-lease-keeper", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def discard(self, leases: Leases) -> None:
        """Watch a pass no longer."""
        with self._lock:
            self._passes.discard(leases)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._watching():
                time.sleep(settings().renew_every)
                try:
                    self._renew_long_running()
                except (DatabaseError, InterfaceError):
                    _LOG.exception("Leases not renewed; the next try is in a moment")
                    connections.close_all()
            connections.close_all()

    def _watching(self) -> bool:
        with self._lock:
            return bool(self._passes)

    def _renew_long_running(self) -> None:
        now, conf = time.monotonic(), settings()
        with self._lock:
            passes = list(self._passes)
        due: dict[tuple[type, str], list[Leases]] = {}
        for leases in passes:
            since, longest = leases.handler_since, leases.handler_timeout or conf.handler_timeout
            if since is not None and conf.renew_every <= now - since < longest:
                due.setdefault((leases.engine.outbox, leases.engine.alias), []).append(leases)
        for (outbox, alias), group in due.items():
            engine = Engine(outbox, alias)
            params = {"tokens": [leases.token for leases in group], "lease": conf.lease}
            found: dict[int, set[Key]] = {}
            for token, *key in engine.query("renew", params):
                found.setdefault(token, set()).add(tuple(key))
            for leases in group:
                leases.found(found.get(leases.token, set()), now)


_the_keeper: Keeper | None = None


def keeper() -> Keeper:
    """Return this process's keeper."""
    global _the_keeper  # noqa: PLW0603 - one per process, made anew after a fork
    if _the_keeper is None or _the_keeper.pid != os.getpid():
        _the_keeper = Keeper()
    return _the_keeper
