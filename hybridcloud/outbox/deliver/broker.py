"""Whether kicks can be sent: a lost broker costs a save next to nothing.

It is tried by opening a connection with a short time-out, and left alone for a while where that
fails: Celery itself would wait for seconds, in each save.
"""

from __future__ import annotations

import logging
import os
import socket
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.logs import log_limited

if TYPE_CHECKING:
    from celery import Celery

_LOG = logging.getLogger("hybridcloud.outbox")
TIMEOUT: Final = 0.3
MUTE: Final = 10.0
"""Seconds for which a broker that was not reached is not tried again."""

# By process, since a fork has connections of its own: until when nothing is tried.
_muted_until: dict[int, float] = {}
_reached_until: dict[int, float] = {}


def may_send(app: Celery) -> bool:
    """Say whether the broker can be reached, as far as that is known."""
    pid, now = os.getpid(), monotonic()
    if now < _muted_until.get(pid, now):
        return False
    # Behind a mute it is tried again, whenever it was reached before.
    if now < _reached_until.get(pid, now):
        return True
    error = _try(app)
    if error is None:
        _reached_until[pid] = now + MUTE
        return True
    mute(error)
    return False


def mute(error: object) -> None:
    """Leave the broker alone for a while; the tick finds the messages then."""
    pid = os.getpid()
    _muted_until[pid] = monotonic() + MUTE
    _reached_until.pop(pid, None)
    message = "No kicks for %s s, the tick drains: the broker of Celery is not reached: %s"
    log_limited(_LOG, logging.WARNING, "broker", message, MUTE, error)


def forget() -> None:
    """Forget what is known, as between two tests."""
    _muted_until.clear()
    _reached_until.clear()


def _try(app: Celery) -> object | None:
    """Return what keeps from the broker; None: nothing, or Celery must say."""
    error: Exception | None = None
    try:
        connection: Any = app.connection_for_write()
        info = connection.info()
        host, port = info.get("hostname"), info.get("port")
        # In memory, by files, or one of several hosts.
        if not host or not port or len(connection.alt or ()) > 1:
            return None
        addresses = {each[4][0] for each in socket.getaddrinfo(host, int(port))}
        for address in addresses:
            try:
                # Its addresses share the time: localhost alone often has two.
                each_s = TIMEOUT / len(addresses)
                socket.create_connection((str(address), int(port)), timeout=each_s).close()
            except OSError as exc:
                error = exc
            else:
                return None
    except (OSError, ValueError) as exc:
        return exc
    return error
