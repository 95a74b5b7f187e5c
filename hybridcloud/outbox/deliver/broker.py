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

_state: dict[str, float] = {}


def may_send(app: Celery) -> bool:
    """Say whether the broker can be reached, as far as that is known."""
    key = f"{os.getpid()}"
    now = monotonic()
    if now < _state.get(key, now):
        return False
    if key in _state and now - _state[key] < MUTE:
        # Reached a moment ago.
        return True
    error = _try(app)
    if error is None:
        _state[key] = now
        return True
    mute(error)
    return False


def mute(error: object) -> None:
    """Leave the broker alone for a while; the tick finds the messages then."""
    _state[f"{os.getpid()}"] = monotonic() + MUTE
    message = "No kicks for %s s, the tick drains: the broker of Celery is not reached: %s"
    log_limited(_LOG, logging.WARNING, "broker", message, MUTE, error)


def forget() -> None:
    """Forget what is known, as between two tests."""
    _state.clear()


def _try(app: Celery) -> object | None:
    """Return what keeps from the broker; None: nothing, or Celery must say."""
    try:
        connection: Any = app.connection_for_write()
        info = connection.info()
        host, port = info.get("hostname"), info.get("port")
        # In memory, by files, or one of several hosts.
        if not host or not port or len(connection.alt or ()) > 1:
            return None
        socket.create_connection((host, int(port)), timeout=TIMEOUT).close()
    except (OSError, ValueError) as exc:
        return exc
    return None
