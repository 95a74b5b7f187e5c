"""Log lines that are said at most once a minute for each cause.

What keeps happening is said with how often: a dead Redis is a line a minute, not one a call.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Hashable

EVERY: Final = 60.0
"""Seconds between two lines about the same cause."""
_MOST: Final = 10_000

_lock = threading.Lock()
_said: dict[Hashable, tuple[float, int]] = {}


def log_limited(
    logger: logging.Logger, level: int, cause: Hashable, message: str, *args: Any, **more: Any
) -> None:
    """Log a line unless one of the same cause was logged in the last minute.

    The next line then says how many were left out. ``more`` is passed on to the logger.
    """
    now = monotonic()
    with _lock:
        at, left_out = _said.get(cause, (None, 0))
        if at is not None and now - at < EVERY:
            _said[cause] = (at, left_out + 1)
            return
        if len(_said) >= _MOST:
            # Bounded: of causes that are gone nothing is remembered for ever.
            _said.clear()
        _said[cause] = (now, 0)
    if left_out:
        message, args = f"{message} (%s more since the last line)", (*args, left_out)
    logger.log(level, message, *args, **more)


def forget_limits() -> None:
    """Forget what was said, as between two tests."""
    with _lock:
        _said.clear()
