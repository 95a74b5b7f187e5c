"""The Redis of the process, which only makes things faster or visible.

Whatever is wrong with it, callers go on: a Redis that refuses, hangs, lies or is full is asked
again after some seconds, and logged once a minute.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.conf import settings
from hybridcloud.logs import log_limited

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

_LOG = logging.getLogger("hybridcloud.redis")
TIMEOUT: Final = 0.3
"""Seconds that one call may take."""
MUTE: Final = 5.0
"""Seconds for which a Redis that failed is not asked."""


class SharedRedis:
    """The Redis of ``REDIS_URL``; no method raises.

    Args:
        client: makes the client at the first call.
    """

    def __init__(self, client: Callable[[], Redis]) -> None:
        self._make = client
        self._client: Redis | None = None
        self._muted_until = float("-inf")

    def get(self, key: str, *, missing: str | None = None) -> str | None:
        """Return the text of a key; None if Redis cannot be asked.

        ``missing`` is returned for a key that is not there.
        """
        answered, value = self._ask("get", key)
        if isinstance(value, str):
            return value
        return missing if answered else None

    def put(
        self, key: str, value: str, *, seconds: int | None = None, only_new: bool = False
    ) -> bool | None:
        """Set a key; say whether it was set, None if Redis cannot be asked.

        With ``only_new`` a key that is there stays as it is.
        """
        answered, done = self._ask("set", key, value, ex=seconds, nx=only_new)
        return bool(done) if answered else None

    def remove(self, key: str) -> None:
        """Remove a key, if Redis can be asked."""
        self._ask("delete", key)

    def _ask(self, command: str, *args: Any, **more: Any) -> tuple[bool, Any]:
        if monotonic() < self._muted_until:
            return False, None
        try:
            self._client = self._client or self._make()
            return True, getattr(self._client, command)(*args, **more)
        except UnicodeError as exc:
            # One key that holds something else says nothing about the others.
            self._tell(args[0], f"its value is not text ({type(exc).__name__})")
            return True, None
        except Exception as exc:  # noqa: BLE001 - one that lies makes its client fail in any way
            self._muted_until = monotonic() + MUTE
            self._tell("", f"{type(exc).__name__}: {exc}")
            return False, None

    @staticmethod
    def _tell(key: str, what: str) -> None:
        said = "Redis is left out for %s s%s: %s"
        where = f" at key {key!r}" if key else ""
        log_limited(_LOG, logging.WARNING, ("redis", key), said, MUTE, where, what)


def shared_redis() -> SharedRedis | None:
    """Return the process's Redis; None where ``REDIS_URL`` is not set."""
    url = settings().redis_url
    return None if url is None else _shared(url, os.getpid())


def redis_client() -> Redis | None:
    """Return a client whose errors its user bears; for tests and tools."""
    url = settings().redis_url
    return None if url is None else _own(url, os.getpid())


@lru_cache(maxsize=4)
def _shared(url: str, _pid: int) -> SharedRedis:
    return SharedRedis(lambda: _client(url))


def _client(url: str) -> Redis:
    from redis import Redis  # noqa: PLC0415 - optional dependency in effect: only where the setting is set
    from redis.backoff import NoBackoff  # noqa: PLC0415 - optional dependency in effect
    from redis.retry import Retry  # noqa: PLC0415 - optional dependency in effect

    # No retries of its own, each of which would cost the time-out again.
    return Redis.from_url(
        url,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


@lru_cache(maxsize=4)
def _own(url: str, _pid: int) -> Redis:
    from redis import Redis  # noqa: PLC0415 - optional dependency in effect

    return Redis.from_url(url, decode_responses=True)
