"""Databases for the backfill's tests, and a redis that shows nothing of other tests."""

from __future__ import annotations

import pytest

from hybridcloud.redis import redis_client

ALIASES = ["control", "cell_us", "cell_eu"]


@pytest.fixture
def committed(transactional_db: None) -> None:
    """Use real commits in all silos: for tests with several connections."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that ask for real commits the databases of all silos."""
    for item in items:
        if "committed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases=ALIASES))


@pytest.fixture(autouse=True)
def _empty_redis() -> None:
    client = redis_client()
    assert client is not None
    for key in client.scan_iter("outbox_backfill.*"):
        client.delete(key)
