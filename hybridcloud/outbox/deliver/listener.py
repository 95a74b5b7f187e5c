"""A drainer without Celery: a process that listens for notifications.

A drainer sweeps when it is notified, when a delayed message is due, and at
least every two seconds, so a notification that is lost costs two seconds.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
from django.db import DatabaseError, InterfaceError, connections

from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError, OutboxError
from hybridcloud.outbox.deliver.notify import channel_of
from hybridcloud.outbox.deliver.tick import tick as run_tick
from hybridcloud.outbox.drain.loop import Drainer
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.tables import outbox_models
from hybridcloud.registry import backfill_outboxes
from silos import assume_silo
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hybridcloud.outbox.store.tables import OutboxTable
    from silos.mode import CurrentSilo

_LOG = logging.getLogger(__name__)
POLL: Final = 2.0
"""Seconds between sweeps when nothing is heard."""
_HEARD: Final = 0.25
"""Seconds after which a listener looks whether it is to end."""
_RECONNECT: Final = 0.5
_SWEEP: Final = 2.0
"""Seconds of one sweep after which no further pass begins, so that a stop is soon heeded."""


@dataclass(frozen=True, slots=True)
class Table:
    """An outbox table that this process drains, and the silo it belongs to."""

    silo: CurrentSilo
    outbox: type[OutboxTable]
    alias: str


def tables_of(silos: Iterable[CurrentSilo]) -> list[Table]:
    """Return the outbox tables of silos."""
    found = []
    for silo in silos:
        with assume_silo(silo.mode, cell=silo.cell):
            found += [
                Table(silo, outbox, alias_for_model(outbox)) for outbox in outbox_models(silo.mode)
            ]
    return found


class Listener(threading.Thread):
    """Listens on channels of a database; calls a function at notifications.

    After each opening of its session as well, for what was notified while it was lost.
    """

    def __init__(self, alias: str, channels: Sequence[str], heard: Callable[[], None]) -> None:
        super().__init__(name=f"hybridcloud-listener-{alias}", daemon=True)
        self._alias = alias
        self._channels = channels
        self._heard = heard
        self._ended = threading.Event()

    def end(self) -> None:
        """Let the thread end; returns at once."""
        self._ended.set()

    def run(self) -> None:
        """Listen until `end`."""
        while not self._ended.is_set():
            try:
                self._listen()
            except (psycopg.Error, DatabaseError, InterfaceError) as exc:
                _LOG.warning("Session of LISTEN on %s lost, opened again: %s", self._alias, exc)
                self._ended.wait(_RECONNECT)
            finally:
                connections[self._alias].close()

    def _listen(self) -> None:
        connection = connections[self._alias]
        with connection.cursor() as cursor:
            for channel in self._channels:
                cursor.execute(f"LISTEN {connection.ops.quote_name(channel)}")
        self._heard()
        while not self._ended.is_set():
            for _ in connection.connection.notifies(timeout=_HEARD, stop_after=1):
                self._heard()


class ListeningDrainer:
    """Drains outbox tables until it is stopped.

    Args:
        tables: what to drain.

    Raises:
        ConfigurationError: ``LISTEN_DATABASE`` cannot stand for several databases.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._wake = threading.Event()
        self._stopped = False
        channels: dict[str, list[str]] = {}
        for table in tables:
            channels.setdefault(table.alias, []).append(channel_of(table.outbox))
        direct = settings().listen_database
        if direct is not None and len(channels) > 1:
            raise ConfigurationError(
                f"HYBRIDCLOUD['LISTEN_DATABASE'] is {direct!r}, one database, but this process "
                f"drains {', '.join(sorted(channels))}. Run a drainer for each silo, or remove it."
            )
        self._listeners = [
            Listener(direct or alias, names, self._wake.set) for alias, names in channels.items()
        ]

    def stop(self) -> None:
        """End after the shard under way, the others given back; safe in a signal."""
        self._stopped = True

    def run(self) -> None:
        """Drain until `stop`."""
        for listener in self._listeners:
            listener.start()
        ticked = -POLL
        try:
            while not self._stopped:
                # Before the look: what is notified during it wakes the next one.
                self._wake.clear()
                tick = monotonic() - ticked >= POLL
                ticked = monotonic() if tick else ticked
                if not self._sweep(tick=tick):
                    self._sleep(self._pause())
        finally:
            for listener in self._listeners:
                listener.end()
            for listener in self._listeners:
                listener.join()

    def _sweep(self, *, tick: bool) -> int:
        moved = 0
        for table in self._tables:
            if self._stopped:
                break
            try:
                with assume_silo(table.silo.mode, cell=table.silo.cell):
                    drainer = Drainer(table.outbox, table.alias, stopped=lambda: self._stopped)
                    drained = drainer.sweep(budget=_SWEEP)
                    if tick:
                        run_tick(Engine(table.outbox, table.alias))
                        backfill_outboxes(table.silo.mode.name, drained)
                    moved += drained
            except (DatabaseError, InterfaceError, OutboxError):
                label = table.outbox._meta.label
                _LOG.exception("%s on %s not drained; next try in %s s", label, table.alias, POLL)
                connections[table.alias].close()
        return moved

    def _pause(self) -> float:
        """Return seconds until a delayed message is due, at most the poll's."""
        pause = POLL
        for table in self._tables:
            try:
                ((left,),) = Engine(table.outbox, table.alias).query("next_delayed", {})
            except (DatabaseError, InterfaceError):
                connections[table.alias].close()
                continue
            if left is not None:
                pause = min(pause, max(left, 0.0))
        return pause

    def _sleep(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        # In slices: a signal handler must not touch the event, whose lock this thread may hold.
        while not self._stopped and (left := deadline - monotonic()) > 0:
            if self._wake.wait(min(left, _HEARD)):
                return
