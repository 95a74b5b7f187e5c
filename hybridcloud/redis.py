"""The process's Redis client: without it each part would open its own connections and wait in its own way."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from hybridcloud.conf import settings

if TYPE_CHECKING:
    from redis import Redis

_TIMEOUT = 0.5
"""Seconds: Redis only makes things faster, so nothing waits long for it."""


def redis_client() -> Redis | None:
    """Return the client of ``REDIS_URL``, one per process; None where the setting is not set."""
    url = settings().redis_url
    return None if url is None else _client(url, os.getpid())


@lru_cache(maxsize=4)
def _client(url: str, _pid: int) -> Redis:
    from redis import Redis  # noqa: PLC0415 - optional dependency in effect: only where the setting is set

    return Redis.from_url(
        url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, decode_responses=True
    )
