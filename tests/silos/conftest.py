"""Fixtures of the silo tests; without it each test would read the silo of the test before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps.registry import Apps
from django.db import connections, models

from silos import all_silo_model, cell_silo_model, control_silo_model, mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django.fixtures import SettingsWrapper

ALIASES = ("control", "cell_us", "cell_eu")

#: Throw-away models: a registry of their own keeps them out of every other test.
REGISTRY = Apps()


@control_silo_model
class Invoice(models.Model):
    """Lives in control."""

    name = models.CharField(max_length=20)

    class Meta:
        app_label = "silo_tests"
        apps = REGISTRY


@cell_silo_model
class Tenant(models.Model):
    """Lives in the cells."""

    name = models.CharField(max_length=20)

    class Meta:
        app_label = "silo_tests"
        apps = REGISTRY


@cell_silo_model
class Document(models.Model):
    """Lives in the cells, with a plain foreign key inside them."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE)

    class Meta:
        app_label = "silo_tests"
        apps = REGISTRY


@all_silo_model
class Note(models.Model):
    """Has a table in every silo."""

    name = models.CharField(max_length=20)

    class Meta:
        app_label = "silo_tests"
        apps = REGISTRY


class Stray(models.Model):
    """Says nothing about silos."""

    class Meta:
        app_label = "silo_tests"
        apps = REGISTRY


class SiloModels:
    """The throw-away models, for tests, which cannot import a conftest."""

    Invoice = Invoice
    Tenant = Tenant
    Document = Document
    Note = Note
    Stray = Stray


HOMES = {
    "control": (Invoice, Note),
    "cell_us": (Tenant, Document, Note),
    "cell_eu": (Tenant, Document, Note),
}


@pytest.fixture(autouse=True)
def _in_the_process_silo() -> Iterator[None]:
    """Leave whatever silo the suite runs its tests in: these tests are about entering one."""
    token = mode._assumed.set(None)
    yield
    mode._assumed.reset(token)


@pytest.fixture
def silo_models() -> type[SiloModels]:
    """Return the throw-away models."""
    return SiloModels


@pytest.fixture
def configure(settings: SettingsWrapper) -> Callable[..., None]:
    """Return a function that replaces the silo keys of HYBRIDCLOUD; those left out are unset."""
    own = ("SILO_MODE", "CELL", "CELLS", "CONTROL_ADDRESS", "DATABASES", "CELL_RESOLVER")

    def change(**keys: Any) -> None:
        rest = {key: value for key, value in settings.HYBRIDCLOUD.items() if key not in own}
        settings.HYBRIDCLOUD = {**rest, **keys}

    return change


@pytest.fixture
def several(configure: Callable[..., None]) -> Callable[..., None]:
    """Configure control and two cells, each with an alias; return a function to change keys."""

    def change(**keys: Any) -> None:
        configure(
            **{
                "CELLS": [{"name": "us"}, {"name": "eu"}],
                "DATABASES": {"control": "control", "cells": {"us": "cell_us", "eu": "cell_eu"}},
                **keys,
            }
        )

    change()
    return change


def _create_tables() -> None:
    for alias, residents in HOMES.items():
        with connections[alias].schema_editor() as editor:
            for model in residents:
                editor.create_model(model)


@pytest.fixture
def tables(db: None, several: Callable[..., None]) -> None:
    """Create the throw-away tables inside the test's own transactions, which roll back."""
    _create_tables()


@pytest.fixture
def committed_tables(transactional_db: None, several: Callable[..., None]) -> Iterator[None]:
    """Create the throw-away tables for real."""
    _create_tables()
    yield
    for alias, residents in HOMES.items():
        with connections[alias].schema_editor() as editor:
            for model in reversed(residents):
                editor.delete_model(model)
