"""The Redis client of the process, shared by all modules."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from hybridcloud.conf import settings

if TYPE_CHECKING:
    from redis import Redis

_TIMEOUT = 0.5
"""In seconds; short, because Redis only speeds things up."""


def redis_client() -> Redis | None:
    """Return the process's client of ``REDIS_URL``; None if that is not set."""
    url = settings().redis_url
    return None if url is None else _client(url, os.getpid())


@lru_cache(maxsize=4)
def _client(url: str, _pid: int) -> Redis:
    from redis import Redis  # noqa: PLC0415 - optional dependency in effect: only where the setting is set

    return Redis.from_url(
        url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, decode_responses=True
    )
