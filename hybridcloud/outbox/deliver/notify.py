"""Wakes listening drainers by NOTIFY.

A NOTIFY inside the writing transaction would serialise all commits of the database. So it is a
statement of its own after the commit, sent by one thread of the process on its own connection.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError, InterfaceError, connections

if TYPE_CHECKING:
    from hybridcloud.outbox.store.tables import OutboxTable

_LOG = logging.getLogger(__name__)
_IDLE: Final = 30.0
"""Seconds without a notification after which the thread closes its connections and ends."""


def channel_of(outbox: type[OutboxTable]) -> str:
    """Return the channel of an outbox table: the table's name."""
    return outbox._meta.db_table


class Notifier:
    """Sends notifications, one after another, from a daemon thread."""

    def __init__(self, *, idle: float = _IDLE) -> None:
        self.pid = os.getpid()
        self._idle = idle
        self._asked: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, channel: str, alias: str) -> None:
        """Notify a channel soon; never waits for the database."""
        # Under the lock, so that a thread about to end either sees this or is replaced.
        with self._lock:
            self._asked.put((channel, alias))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hybridcloud-notifier", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Send what is queued, then end the thread and close its connections."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._asked.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        wait = self._idle
        try:
            while True:
                try:
                    asked = self._asked.get(timeout=wait)
                except queue.Empty:
                    asked = None
                if asked is not None:
                    _notify(*asked)
                    continue
                wait = 0.0
                with self._lock:
                    # The next `send` starts another thread.
                    if self._asked.empty():
                        self._thread = None
                        return
        finally:
            connections.close_all()


def _notify(channel: str, alias: str) -> None:
    connection = connections[alias]
    try:
        if connection.connection is not None and not connection.is_usable():
            connection.close()
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {connection.ops.quote_name(channel)}")
    except (DatabaseError, InterfaceError) as exc:
        # Drainers also poll, so a lost notification costs a poll's interval.
        _LOG.warning("No notification on %s of %s: %s", channel, alias, exc)
        connection.close()


_the_notifier: Notifier | None = None


def notifier() -> Notifier:
    """Return the process's notifier."""
    global _the_notifier  # noqa: PLW0603 - one per process, replaced after a fork
    if _the_notifier is None or _the_notifier.pid != os.getpid():
        _the_notifier = Notifier()
    return _the_notifier


def send_notify(outbox: type[OutboxTable], alias: str) -> None:
    """Wake the drainers that listen for an outbox table."""
    notifier().send(channel_of(outbox), alias)
