"""What user code raised: its text, and whether it ends the process.

Nothing here raises, whatever an exception's own methods do.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from typing import Final

MOST_SUMMARY: Final = 2_000
MOST_TEXT: Final = 20_000
NO_TEXT: Final = "the text of the exception cannot be read"
_CELERY_STOPS: Final = ("WorkerShutdown", "WorkerTerminate")


class DrainerStopped(SystemExit):
    """Ends a drainer's process at its second signal."""


def is_own_stop(error: BaseException) -> bool:
    """Say whether an exception ends the process, and is not user code's.

    So does Ctrl-C where Python's own handler turns it into an exception, a stop of a Celery
    worker, and the second signal to a drainer. Any other SystemExit or KeyboardInterrupt was
    raised by user code, and is a failure as every exception is.
    """
    if isinstance(error, KeyboardInterrupt):
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not isinstance(error, SystemExit):
        return False
    # Not imported: where Celery is not loaded, nothing of it was raised.
    celery = sys.modules.get("celery.exceptions")
    stops = [getattr(celery, name, DrainerStopped) for name in _CELERY_STOPS]
    return isinstance(error, (DrainerStopped, *stops))


def pass_on_stop(error: BaseException) -> None:
    """Raise an exception again if it ends the process."""
    if is_own_stop(error):
        raise error


def summary(error: BaseException) -> str:
    """Return an exception's class and message, at most 2,000 characters."""
    name = class_name(error)
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - its own __str__ may raise anything
        text = NO_TEXT
    return storable(f"{name}: {text}", MOST_SUMMARY)


def described(error: BaseException) -> str:
    """Return an exception with its traceback, the last 20,000 characters."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - the messages, notes and causes of it may raise anything
        text = f"{_frames(error)}{summary(error)}"
    return storable(text[-MOST_TEXT:], MOST_TEXT)


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class."""
    # By `type`, which a metaclass cannot change: its own __name__ may raise.
    return storable(type.__dict__["__name__"].__get__(type(error)), 200)


def storable(text: object, most: int = MOST_SUMMARY) -> str:
    r"""Return text as PostgreSQL stores it: no NUL, no lone surrogate, bounded.

    What it cannot store is written as an escape, such as ``\x00`` or ``\udc80``.
    """
    try:
        shown = str(text)[:most].replace("\x00", "\\x00")
    except BaseException:  # noqa: BLE001 - what users give may raise anything
        shown = NO_TEXT
    return shown.encode("utf-8", "backslashreplace").decode()[:most]


def _frames(error: BaseException) -> str:
    try:
        return "".join(traceback.format_tb(error.__traceback__))
    except BaseException:  # noqa: BLE001 - a source file that cannot be read, for one
        return ""
