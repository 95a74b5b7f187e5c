"""Databases and options for the engine's tests."""

from __future__ import annotations

import pytest

ALIASES = ["control", "cell_us", "cell_eu"]


@pytest.fixture
def committed(transactional_db: None) -> None:
    """Use real commits in all silos: for tests with several connections."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that ask for real commits the databases of all silos."""
    for item in items:
        if "committed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases=ALIASES))
