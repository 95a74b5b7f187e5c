"""Limits of models and functions."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest
from django.apps.registry import Apps
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AbstractUser, Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import models
from django.db.migrations.state import ProjectState

from silos import (
    AvailabilityError,
    SiloMode,
    all_silo_model,
    assume_silo,
    cell_silo_function,
    cell_silo_model,
    control_silo_function,
    control_silo_model,
)
from silos.errors import SiloConfigurationError
from silos.limits import EVERY_SILO, silo_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Configure = Callable[..., None]


@cell_silo_function
def work() -> str:
    return "worked"


@control_silo_function
async def bill(amount: int) -> int:
    return amount


def new_model(name: str, *bases: type[models.Model], **meta: Any) -> type[models.Model]:
    options = type("Meta", (), {"app_label": "silo_limits", "apps": Apps(), **meta})
    attrs = {"__module__": __name__, "Meta": options}
    return type(name, bases or (models.Model,), attrs)


def test_a_decorated_model_says_where_it_lives(silo_models: Any) -> None:
    assert silo_of(silo_models.Invoice) is SiloMode.CONTROL
    assert silo_of(silo_models.Tenant) is SiloMode.CELL
    assert silo_of(silo_models.Note) is EVERY_SILO
    assert silo_of(silo_models.Stray) is None


@pytest.mark.parametrize("model", [Group, Permission, LogEntry, Session, Group.permissions.through])
def test_auth_admin_and_sessions_live_in_control(model: type[models.Model]) -> None:
    assert silo_of(model) is SiloMode.CONTROL


def test_content_types_live_in_every_silo() -> None:
    assert silo_of(ContentType) is EVERY_SILO


def test_an_abstract_model_of_contrib_does_not_pull_its_children_to_control() -> None:
    assert silo_of(AbstractUser) is None


def test_children_share_the_limit_of_an_abstract_parent() -> None:
    parent = cell_silo_model(new_model("Base", abstract=True))
    assert silo_of(new_model("Child", parent)) is SiloMode.CELL


def test_proxies_and_multi_table_children_share_the_limit_of_their_parent(
    silo_models: Any,
) -> None:
    tenant = silo_models.Tenant
    meta = {"apps": tenant._meta.apps}
    assert silo_of(new_model("ProxyOfTenant", tenant, proxy=True, **meta)) is SiloMode.CELL
    assert silo_of(new_model("BigTenant", tenant, **meta)) is SiloMode.CELL
    assert silo_of(new_model("Staff", Group, proxy=True)) is SiloMode.CONTROL


def test_the_table_of_a_many_to_many_field_follows_the_model_that_has_the_field() -> None:
    tag = new_model("Tag")
    links = {"tags": models.ManyToManyField(tag, related_name="+")}
    meta = type("Meta", (), {"app_label": "silo_limits", "apps": tag._meta.apps})
    attrs = {"__module__": __name__, "Meta": meta, **links}
    page = cell_silo_model(type("Page", (models.Model,), attrs))
    assert silo_of(page.tags.through) is SiloMode.CELL  # type: ignore[attr-defined]


def test_a_model_that_only_migrations_remember_has_no_limit() -> None:
    assert silo_of(new_model("Forgotten")) is None


def test_a_child_declared_for_another_silo_than_its_parent_is_an_error(silo_models: Any) -> None:
    tenant = silo_models.Tenant
    child = new_model("Strange", tenant, apps=tenant._meta.apps)
    with pytest.raises(SiloConfigurationError, match=r"Strange inherits a limit to the cells.*con"):
        control_silo_model(child)
    with pytest.raises(SiloConfigurationError, match="inherits a limit to the control silo"):
        all_silo_model(new_model("CellStaff", Group, proxy=True))


def test_a_parent_and_child_declared_for_the_same_silo_are_fine(silo_models: Any) -> None:
    child = new_model("Twice", silo_models.Tenant, apps=silo_models.Tenant._meta.apps)
    assert cell_silo_model(child) is child


def test_a_model_as_a_migration_sees_it_lives_where_the_real_one_does() -> None:
    state = ProjectState.from_apps(Group._meta.apps)
    historical = state.apps.get_model("auth", "Group")
    assert historical is not Group
    assert silo_of(historical) is SiloMode.CONTROL


@pytest.mark.parametrize("thing", [int, work, "acme.User"])
def test_only_models_take_a_model_limit(thing: Any) -> None:
    with pytest.raises(TypeError, match="is not a model class"):
        cell_silo_model(thing)


def test_a_limited_function_runs_in_its_silo_and_in_a_monolith(several: Configure) -> None:
    assert work() == "worked"
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert work() == "worked"
    assert work.__name__ == "work"


def test_a_limited_function_refuses_another_silo_at_the_call(several: Configure) -> None:
    with (
        assume_silo(SiloMode.CONTROL),
        pytest.raises(AvailabilityError, match=r"work\(\) runs only in the cells") as caught,
    ):
        work()
    assert caught.value.current == "the control silo"
    assert caught.value.lives_in == "the cells"
    assert caught.value.touched.endswith("work()")


def test_a_limited_function_refuses_in_a_process_of_another_silo(several: Configure) -> None:
    several(SILO_MODE="CONTROL")
    with pytest.raises(AvailabilityError, match="called from the control silo"):
        work()


def test_a_limited_coroutine_refuses_another_silo(several: Configure) -> None:
    with assume_silo(SiloMode.CONTROL):
        assert asyncio.run(bill(3)) == 3
    with (
        assume_silo(SiloMode.CELL, cell="us"),
        pytest.raises(AvailabilityError, match=r"bill\(\) runs only in the control.*cell 'us'"),
    ):
        asyncio.run(bill(3))


def test_only_callables_take_a_function_limit() -> None:
    with pytest.raises(TypeError, match="'work' is not callable"):
        cell_silo_function("work")  # type: ignore[arg-type]


def test_the_error_survives_pickling_between_processes(several: Configure) -> None:
    with assume_silo(SiloMode.CONTROL), pytest.raises(AvailabilityError) as caught:
        work()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.lives_in == "the cells"
