"""Databases and options for the engine's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fixtures.acme.models import Organization

ALIASES = ["control", "cell_us", "cell_eu"]


@pytest.fixture
def committed(transactional_db: None) -> None:
    """Use real commits in all silos: for tests with several connections."""
    from hybridcloud.outbox.drain import due

    due.forget()


@pytest.fixture
def slow_looks(_limits: None) -> Iterator[None]:
    """Let every look seem slow, so that drainers go ahead whenever they may."""
    from hybridcloud.outbox.drain import ahead

    from .engine import tune

    tune(slow_s=-1000.0, slow_claims=1, quick_s=0.0, settle_every_s=0.0)
    ahead.forget()
    yield
    ahead.forget()


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    """Have the limits of production again behind a test that changed them."""
    from hybridcloud.outbox.drain.limits import LIMITS

    from .engine import tuned

    tuned.limits = LIMITS
    yield
    tuned.limits = LIMITS


@pytest.fixture
def org() -> Organization:
    """Make an organization in the us cell."""
    from fixtures.acme.factories import create_organization

    return create_organization(cell="us")


@pytest.fixture
def unflushed_us(settings: Any) -> Iterator[None]:
    """Be in the us cell, where nothing is flushed: for tests that count what a write itself costs."""
    from silos import SiloMode, assume_silo

    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "cron"}
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture(scope="session")
def zoo(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Make the tables of ``zoo.py``, whose app is not installed and so has no migrations."""
    from django.db import connections

    from .zoo import CELL_MODELS, CONTROL_MODELS

    where = {"cell_us": CELL_MODELS, "control": CONTROL_MODELS}
    with django_db_blocker.unblock():
        for alias, models in where.items():
            with connections[alias].schema_editor() as editor:
                for model in models:
                    editor.create_model(model)
        yield
        for alias, models in where.items():
            with connections[alias].schema_editor() as editor:
                for model in reversed(models):
                    editor.delete_model(model)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that ask for real commits the databases of all silos."""
    for item in items:
        if "committed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases=ALIASES))
