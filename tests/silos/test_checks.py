"""Every system check, provoked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.apps.registry import Apps
from django.contrib.auth.models import Group
from django.core.checks import Error, Info, run_checks
from django.db import models

from silos import cell_silo_model
from silos.checks import (
    check_model_limits,
    check_relations,
    check_router,
    check_settings,
)
from silos.router import SiloRouter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django.fixtures import SettingsWrapper

    Configure = Callable[..., None]


class Subrouter(SiloRouter):
    """A project's own refinement."""


def app_of(*found: type[models.Model]) -> Any:
    return SimpleNamespace(label="silo_checks", get_models=lambda: list(found))


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


def new_cell_model(**fields: models.Field[Any, Any]) -> type[models.Model]:
    meta = type("Meta", (), {"app_label": "silo_checks", "apps": Apps()})
    attrs = {"__module__": __name__, "Meta": meta, **fields}
    return cell_silo_model(type("Pointer", (models.Model,), attrs))


def test_e001_a_model_without_a_limit_beside_siloed_ones(silo_models: Any) -> None:
    (message,) = check_model_limits([app_of(silo_models.Tenant, silo_models.Stray)])
    assert isinstance(message, Error)
    assert message.id == "silos.E001"
    assert message.obj is silo_models.Stray
    assert "silo_tests.Stray does not say in which silo" in message.msg


def test_e001_leaves_apps_without_silos_alone(silo_models: Any) -> None:
    assert check_model_limits([app_of(silo_models.Stray)]) == []
    assert check_model_limits([app_of(silo_models.Tenant)]) == []
    # Nothing asked for is not everything: `manage.py check app` passes its apps only.
    assert check_model_limits([]) == []


def test_e002_an_alias_that_databases_lacks(several: Configure) -> None:
    several(DATABASES={"control": "kontrol", "cells": {"us": "cell_us", "eu": "default"}})
    found = [message for message in check_settings() if message.id == "silos.E002"]
    # `default` is there, but empty.
    assert [message.msg.split("is missing")[0].strip() for message in found] == [
        "The alias 'default' of cell 'eu'",
        "The alias 'kontrol' of the control silo",
    ]


@pytest.mark.parametrize(
    "process", [{"SILO_MODE": "CELL", "CELL": "us"}, {"SILO_MODE": "CELL", "CELL": "eu"}]
)
def test_e002_a_cell_process_needs_its_own_alias_only(
    several: Configure, process: dict[str, str]
) -> None:
    several(**process, DATABASES={"control": "gone", "cells": {"us": "cell_us", "eu": "gone"}})
    expected = ["silos.E002"] if process["CELL"] == "eu" else []
    assert ids(check_settings()) == expected


def test_e002_a_control_process_needs_its_own_alias_only(several: Configure) -> None:
    several(SILO_MODE="CONTROL", DATABASES={"control": "control", "cells": {"us": "gone"}})
    assert check_settings() == []
    several(SILO_MODE="CONTROL", DATABASES={"control": "gone"})
    assert ids(check_settings()) == ["silos.E002"]


@pytest.mark.parametrize(
    ("routers", "expected"),
    [
        ([], ["silos.E003"]),
        (["silos.router.SiloRouter"], []),
        ([SiloRouter()], []),
        ([f"{Subrouter.__module__}.Subrouter"], []),
        ([object(), "silos.router.SiloRouter"], ["silos.E003"]),
    ],
)
def test_e003_another_router_comes_first(
    settings: SettingsWrapper, routers: list[object], expected: list[str]
) -> None:
    settings.DATABASE_ROUTERS = routers
    assert ids(check_router()) == expected


@pytest.mark.parametrize(
    "cells",
    [
        [{"name": "us"}, {"name": "us"}],
        [{"name": "us", "address": "http://a"}, {"name": "eu", "address": "http://a"}],
    ],
)
def test_e004_duplicate_cells(configure: Configure, cells: list[dict[str, str]]) -> None:
    configure(CELLS=cells)
    (message,) = check_settings()
    assert message.id == "silos.E004"
    assert "Duplicate cell" in message.msg


def test_e005_foreign_keys_across_silos() -> None:
    pointer = new_cell_model(
        owner=models.ForeignKey(Group, models.CASCADE, related_name="+"),
        only=models.OneToOneField(Group, models.CASCADE, related_name="+"),
        many=models.ManyToManyField(Group, related_name="+"),
    )
    found = check_relations([app_of(pointer)])
    assert ids(found) == ["silos.E005"] * 3
    assert "points from the cells into the control silo, to auth.Group" in found[0].msg
    assert "HybridCloudForeignKey" in (found[0].hint or "")


def test_e005_relations_inside_a_silo_are_fine(silo_models: Any) -> None:
    inside = new_cell_model(
        tenant=models.ForeignKey(silo_models.Tenant, models.CASCADE, related_name="+"),
        kind=models.ForeignKey("contenttypes.ContentType", models.CASCADE, related_name="+"),
    )
    # A name in another registry stays a string, as a lazy relation does.
    inside._meta.get_field("kind").remote_field.model = silo_models.Note
    assert check_relations([app_of(inside, silo_models.Document, silo_models.Stray)]) == []


def test_i006_a_monolith_with_several_aliases(several: Configure) -> None:
    found = [message for message in check_settings() if message.id == "silos.I006"]
    assert len(found) == 1
    assert isinstance(found[0], Info)


def test_i006_is_not_for_one_database_nor_for_siloed_processes(
    configure: Configure, several: Configure
) -> None:
    several(SILO_MODE="CELL", CELL="us")
    assert check_settings() == []
    configure(DATABASES={"control": "control", "cells": {"monolith": "control"}})
    assert check_settings() == []


def test_e007_settings_that_cannot_be_used(configure: Configure) -> None:
    configure(SILO_MODE="CELLS")
    (message,) = check_settings()
    assert message.id == "silos.E007"
    assert "Did you mean 'CELL'" in message.msg


def test_the_checks_are_registered(configure: Configure, settings: SettingsWrapper) -> None:
    configure(SILO_MODE="CELLS")
    settings.DATABASE_ROUTERS = []
    assert {"silos.E003", "silos.E007"} <= set(ids(run_checks(tags=["silos"])))


def test_the_app_starts_with_settings_that_only_the_checks_will_report(
    configure: Configure,
) -> None:
    configure(CELLS=[{"name": "us"}, {"name": "us"}])
    apps.get_app_config("silos").ready()
    assert ids(check_settings()) == ["silos.E004"]
