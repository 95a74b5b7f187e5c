"""The router, on three real databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Group
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.db.models.query import QuerySet

from silos import AvailabilityError, SiloMode, assume_silo
from silos.errors import UnknownCellError
from silos.router import (
    SiloRouter,
    alias_for_model,
    alias_of,
    current_alias,
    silo_aliases,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[..., None]

on_all_silos = pytest.mark.django_db(databases=["control", "cell_us", "cell_eu"])
US = assume_silo(SiloMode.CELL, cell="us")
EU = assume_silo(SiloMode.CELL, cell="eu")
CONTROL = assume_silo(SiloMode.CONTROL)


def names_on(alias: str, table: str) -> list[str]:
    """Read a table past the ORM, so that no router has a say."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f'SELECT name FROM "{table}" ORDER BY id')
        return [name for (name,) in cursor.fetchall()]


@on_all_silos
def test_rows_land_in_the_silo_that_is_current(tables: None, silo_models: Any) -> None:
    with US:
        silo_models.Tenant.objects.create(name="in us")
    with EU:
        silo_models.Tenant(name="in eu").save()
    with CONTROL:
        silo_models.Invoice.objects.create(name="in control")
    assert names_on("cell_us", "silo_tests_tenant") == ["in us"]
    assert names_on("cell_eu", "silo_tests_tenant") == ["in eu"]
    assert names_on("control", "silo_tests_invoice") == ["in control"]


@on_all_silos
def test_a_monolith_reaches_control_always_and_cells_by_name(
    tables: None, silo_models: Any
) -> None:
    silo_models.Invoice.objects.create(name="bill")
    with assume_silo(SiloMode.MONOLITH, cell="eu"):
        silo_models.Tenant.objects.create(name="one")
        assert silo_models.Invoice.objects.get().name == "bill"
    assert names_on("cell_eu", "silo_tests_tenant") == ["one"]


@on_all_silos
def test_a_model_of_every_silo_is_kept_apart_in_each(tables: None, silo_models: Any) -> None:
    note = silo_models.Note
    for silo in (US, EU, CONTROL):
        with silo as entered:
            note.objects.create(name=str(entered))
    with assume_silo(SiloMode.MONOLITH, cell="eu"):
        # A monolith keeps them with control, whichever cell is current.
        assert note.objects.get().name == "the control silo"
    with EU:
        in_eu = note.objects.get()
    assert in_eu.name == "cell 'eu'"
    # A row that was loaded says itself where it lives.
    in_eu.name = "still in eu"
    in_eu.save()
    assert names_on("cell_eu", "silo_tests_note") == ["still in eu"]
    with US, pytest.raises(AvailabilityError, match=r"'cell_eu'.*cell 'us' uses alias 'cell_us'"):
        in_eu.save()


@on_all_silos
def test_a_queryset_takes_the_silo_that_is_current_when_it_is_evaluated(
    tables: None, silo_models: Any
) -> None:
    with US:
        silo_models.Tenant.objects.create(name="in us")
        lazy = silo_models.Tenant.objects.all()
    with EU:
        assert list(lazy) == []


@pytest.mark.parametrize(
    "touch",
    [
        QuerySet.first,
        QuerySet.count,
        QuerySet.delete,
        lambda rows: rows.update(name="x"),
        lambda rows: rows.create(name="x"),
        lambda rows: rows.bulk_create([rows.model(name="x")]),
        lambda rows: rows.model(name="x").save(),
        lambda rows: list(rows.raw("SELECT 1 AS id")),
    ],
    ids=["first", "count", "delete", "update", "create", "bulk_create", "save", "raw"],
)
@on_all_silos
def test_touching_a_model_in_another_silo_is_an_error(
    tables: None, silo_models: Any, touch: Callable[[Any], object]
) -> None:
    with (
        CONTROL,
        pytest.raises(
            AvailabilityError, match=r"silo_tests.Tenant .* lives in the cells.* the control silo"
        ),
    ):
        touch(silo_models.Tenant.objects.all())
    with (
        EU,
        pytest.raises(
            AvailabilityError, match=r"silo_tests.Invoice .* lives in the control silo.* cell 'eu'"
        ),
    ):
        touch(silo_models.Invoice.objects.all())


@on_all_silos
def test_a_cell_model_without_a_current_cell_is_an_error(tables: None, silo_models: Any) -> None:
    with pytest.raises(AvailabilityError, match=r"no current cell.*cell_eu, cell_us"):
        silo_models.Tenant.objects.count()


@on_all_silos
def test_an_instance_of_one_cell_is_not_copied_into_another(tables: None, silo_models: Any) -> None:
    with US:
        tenant = silo_models.Tenant.objects.create(name="in us")
    with (
        EU,
        pytest.raises(
            AvailabilityError, match=r"lives in cell 'us' \(alias 'cell_us'\).*'cell_eu'"
        ),
    ):
        tenant.save()
    for act in (tenant.delete, tenant.refresh_from_db, tenant.document_set.count):
        with EU, pytest.raises(AvailabilityError, match=r"'cell_us'.*'cell_eu'"):
            act()
        with (
            assume_silo(SiloMode.MONOLITH, cell="eu"),
            pytest.raises(AvailabilityError, match=r"'cell_us'.*'cell_eu'"),
        ):
            act()
    assert names_on("cell_us", "silo_tests_tenant") == ["in us"]
    assert names_on("cell_eu", "silo_tests_tenant") == []


@on_all_silos
def test_a_monolith_without_a_current_cell_follows_the_instance(
    tables: None, silo_models: Any
) -> None:
    with US:
        tenant = silo_models.Tenant.objects.create(name="old")
    tenant.name = "new"
    tenant.save()
    assert tenant.document_set.count() == 0
    assert names_on("cell_us", "silo_tests_tenant") == ["new"]


@on_all_silos
def test_relations_stay_inside_one_database(tables: None, silo_models: Any) -> None:
    with US:
        tenant = silo_models.Tenant.objects.create(name="in us")
        document = silo_models.Document.objects.create(tenant=tenant)
        assert document.tenant == tenant
    with EU:
        foreign = silo_models.Tenant.objects.create(name="in eu")
    with US, pytest.raises(ValueError, match="router prevents this relation"):
        document.tenant = foreign


def test_unsaved_objects_may_relate_inside_a_silo_only(silo_models: Any) -> None:
    allow = SiloRouter().allow_relation
    assert allow(silo_models.Document(), silo_models.Tenant()) is True
    assert allow(silo_models.Document(), silo_models.Note()) is True
    assert allow(silo_models.Invoice(), silo_models.Tenant()) is False
    assert allow(silo_models.Stray(), silo_models.Tenant()) is None


def test_a_model_without_a_limit_is_left_to_other_routers(
    several: Configure, silo_models: Any
) -> None:
    assert SiloRouter().db_for_read(silo_models.Stray) is None
    assert SiloRouter().db_for_write(silo_models.Stray) is None
    assert alias_for_model(silo_models.Stray) == "default"


def test_one_database_takes_everything(configure: Configure, silo_models: Any) -> None:
    configure(CELLS=[{"name": "us"}, {"name": "eu"}])
    assert silo_aliases() == {"default": (SiloMode.MONOLITH, None)}
    assert {alias_for_model(each) for each in (silo_models.Tenant, Group, ContentType)} == {
        "default"
    }
    with CONTROL:
        assert alias_for_model(Group) == "default"
        with pytest.raises(AvailabilityError):
            alias_for_model(silo_models.Tenant)


def test_contrib_models_are_routed(several: Configure) -> None:
    assert (alias_for_model(Group), alias_for_model(ContentType)) == ("control", "control")
    with EU:
        assert alias_for_model(ContentType) == "cell_eu"
        with pytest.raises(AvailabilityError, match=r"auth.Group lives in the control silo"):
            alias_for_model(Group)


def test_the_current_alias_follows_silo_and_cell(several: Configure) -> None:
    assert current_alias() == "control"
    with assume_silo(SiloMode.MONOLITH, cell="eu"):
        assert current_alias() == "cell_eu"
    with US:
        assert current_alias() == "cell_us"
    with CONTROL:
        assert current_alias() == "control"


def test_each_silo_has_its_alias(several: Configure) -> None:
    assert alias_of(SiloMode.CONTROL) == "control"
    assert alias_of(SiloMode.CELL, "eu") == alias_of(SiloMode.MONOLITH, "eu") == "cell_eu"
    assert silo_aliases() == {
        "control": (SiloMode.CONTROL, None),
        "cell_us": (SiloMode.CELL, "us"),
        "cell_eu": (SiloMode.CELL, "eu"),
    }
    with pytest.raises(UnknownCellError):
        alias_of(SiloMode.CELL, "mars")
    with pytest.raises(AvailabilityError, match="no current cell"):
        alias_of(SiloMode.CELL)


def test_cells_that_share_a_database_need_no_current_cell(
    configure: Configure, silo_models: Any
) -> None:
    configure(
        CELLS=[{"name": "us"}, {"name": "eu"}],
        DATABASES={"control": "control", "cells": {"us": "cell_us", "eu": "cell_us"}},
    )
    assert alias_for_model(silo_models.Tenant) == "cell_us"
    assert silo_aliases()["cell_us"] == (SiloMode.CELL, None)


def test_a_cell_process_owns_its_alias_whoever_else_is_mapped_to_it(
    configure: Configure,
) -> None:
    configure(SILO_MODE="CELL", CELL="us", CELLS=[{"name": "us"}, {"name": "eu"}])
    assert silo_aliases() == {"default": (SiloMode.CELL, "us")}
    configure(
        SILO_MODE="CELL",
        CELL="us",
        CELLS=[{"name": "us"}, {"name": "eu"}],
        DATABASES={"control": "gone", "cells": {"us": "cell_us", "eu": "gone too"}},
    )
    assert silo_aliases() == {"cell_us": (SiloMode.CELL, "us")}


@on_all_silos
def test_a_cell_process_reaches_its_own_models_only(
    tables: None, several: Configure, silo_models: Any
) -> None:
    several(SILO_MODE="CELL", CELL="eu")
    silo_models.Tenant.objects.create(name="mine")
    assert names_on("cell_eu", "silo_tests_tenant") == ["mine"]
    with pytest.raises(AvailabilityError, match="lives in the control silo"):
        silo_models.Invoice.objects.count()
