"""What every run begins with: the servers' versions, or how to start them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import psycopg
import pytest
import redis

from fixtures.servers import SILOS, url_variable

pytest_plugins = ["tests.rules"]


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    """Begin with no log line said, and no Redis left out."""
    from hybridcloud import logs
    from hybridcloud import redis as shared

    logs.forget_limits()
    shared._shared.cache_clear()


def pytest_sessionstart() -> None:
    missing = [name for name in _variables() if not os.environ.get(name)]
    if missing:
        raise pytest.UsageError(
            f"{missing[0]} is not set. Start the servers: make test, or "
            "python -m fixtures.servers run -- python -m pytest"
        )


def pytest_report_header() -> list[str]:
    with psycopg.connect(os.environ[url_variable(SILOS[0])]) as connection:
        postgres = connection.info.parameter_status("server_version")
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        info = client.info("server")
    flavour = "valkey" if "valkey_version" in info else "redis"
    packages = ("django", "celery", "psycopg", "redis")
    return [
        f"servers: PostgreSQL {postgres}, {flavour} {info[f'{flavour}_version']}",
        f"with: Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in packages),
    ]


def _variables() -> list[str]:
    return [*(url_variable(alias) for alias in SILOS), "REDIS_URL"]
