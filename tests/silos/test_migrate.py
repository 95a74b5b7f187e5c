"""Where migrations run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.db import connections, migrations, models
from django.db.migrations.state import ModelState, ProjectState

from silos import SiloMode
from silos.errors import SiloConfigurationError
from silos.limits import EVERY_SILO, silo_of
from silos.router import SiloRouter

if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[..., None]

SILOS = ("control", "cell_us", "cell_eu")


def runs_on(app_label: str, model_name: str | None = None, **hints: Any) -> set[str]:
    allow = SiloRouter().allow_migrate
    return {db for db in SILOS if allow(db, app_label, model_name=model_name, **hints)}


@pytest.fixture
def mixed_app(monkeypatch: pytest.MonkeyPatch, silo_models: Any) -> SimpleNamespace:
    """Stand in for an installed app with models of control, of cells and of every silo."""
    by_name = {
        model._meta.model_name: model
        for model in (silo_models.Invoice, silo_models.Tenant, silo_models.Note)
    }
    config = SimpleNamespace(
        label="silo_tests",
        name="no_module_is_inside_this",
        get_models=lambda: list(by_name.values()),
    )

    def get_model(name: str, **_options: bool) -> type[models.Model]:
        try:
            return by_name[name.lower()]
        except KeyError:
            raise LookupError(name) from None

    config.get_model = get_model
    monkeypatch.setitem(apps.app_configs, "silo_tests", config)
    return config


def test_a_model_is_migrated_where_it_lives(several: Configure, mixed_app: object) -> None:
    assert runs_on("silo_tests", "invoice") == {"control"}
    assert runs_on("silo_tests", "tenant") == {"cell_us", "cell_eu"}
    assert runs_on("silo_tests", "note") == set(SILOS)


@pytest.mark.parametrize(
    ("app", "model", "where"),
    [
        ("auth", "user", {"control"}),
        ("auth", "user_groups", {"control"}),
        ("auth", None, {"control"}),
        ("admin", None, {"control"}),
        ("sessions", "session", {"control"}),
        ("contenttypes", "contenttype", set(SILOS)),
        ("contenttypes", None, set(SILOS)),
    ],
)
def test_contrib_apps_have_their_places(
    several: Configure, app: str, model: str | None, where: set[str]
) -> None:
    assert runs_on(app, model) == where


def test_no_siloed_model_is_on_an_alias_of_no_silo(several: Configure, mixed_app: object) -> None:
    allow = SiloRouter().allow_migrate
    assert allow("default", "auth", model_name="user") is False
    assert allow("default", "contenttypes", model_name="contenttype") is False
    assert allow("default", "silo_tests") is False


def test_an_app_without_silos_is_left_to_the_default_alias(several: Configure) -> None:
    assert runs_on("somewhere_else", "thing") == runs_on("somewhere_else") == set()
    assert SiloRouter().allow_migrate("default", "somewhere_else") is None


def test_an_operation_without_a_model_follows_an_app_of_one_silo(
    several: Configure, mixed_app: SimpleNamespace, silo_models: Any
) -> None:
    mixed_app.get_models = lambda: [silo_models.Tenant]
    assert runs_on("silo_tests") == {"cell_us", "cell_eu"}


def test_an_operation_without_a_model_in_a_mixed_app_needs_a_hint(
    several: Configure, mixed_app: object
) -> None:
    with pytest.raises(
        SiloConfigurationError,
        match=r"RunPython, RunSQL.*'silo_tests'.*every silo and the cells and the control silo.*hints=",
    ):
        runs_on("silo_tests")
    assert runs_on("silo_tests", silo=SiloMode.CONTROL) == {"control"}
    assert runs_on("silo_tests", silo="CELL") == {"cell_us", "cell_eu"}
    assert runs_on("silo_tests", silo=EVERY_SILO) == set(SILOS)


def test_an_operation_without_a_model_follows_the_model_of_its_hints(
    several: Configure, mixed_app: object, silo_models: Any
) -> None:
    assert runs_on("silo_tests", model_name="tenant") == {"cell_us", "cell_eu"}
    assert runs_on("silo_tests", model=silo_models.Invoice) == {"control"}


def test_a_hint_that_is_no_place_is_refused(several: Configure) -> None:
    with pytest.raises(SiloConfigurationError, match=r"silo='MONOLITH'.*is not a valid limit"):
        runs_on("silo_tests", silo="MONOLITH")


def test_one_database_takes_every_operation(configure: Configure, mixed_app: object) -> None:
    configure()
    allow = SiloRouter().allow_migrate
    for model in ("invoice", "tenant", "note", None):
        assert allow("default", "silo_tests", model_name=model) is True
    assert allow("default", "auth", model_name="user") is True
    assert allow("default", "somewhere_else", model_name="thing") is None


def test_a_cell_process_with_one_database_migrates_cell_models_only(
    configure: Configure, mixed_app: object
) -> None:
    configure(SILO_MODE="CELL", CELLS=[{"name": "us"}])
    allow = SiloRouter().allow_migrate
    assert allow("default", "silo_tests", model_name="tenant") is True
    assert allow("default", "silo_tests", model_name="note") is True
    assert allow("default", "silo_tests", model_name="invoice") is False
    assert allow("default", "auth", model_name="user") is False


def test_a_deleted_model_is_told_by_the_app_config(
    several: Configure, mixed_app: SimpleNamespace
) -> None:
    with pytest.raises(
        SiloConfigurationError, match=r"'gone'.*no longer in the code.*removed_models"
    ):
        runs_on("silo_tests", "gone")
    mixed_app.removed_models = {"Gone": SiloMode.CELL}
    assert runs_on("silo_tests", "gone") == {"cell_us", "cell_eu"}


def test_a_deleted_model_of_contrib_lived_with_its_app(several: Configure) -> None:
    assert runs_on("auth", "message") == {"control"}


def test_a_deleted_model_may_still_have_a_limited_parent(
    several: Configure, mixed_app: object, silo_models: Any
) -> None:
    meta = type("Meta", (), {"app_label": "silo_tests", "apps": silo_models.Tenant._meta.apps})
    gone = type("GoneTenant", (silo_models.Tenant,), {"__module__": __name__, "Meta": meta})
    assert runs_on("silo_tests", "gonetenant", model=gone) == {"cell_us", "cell_eu"}


def test_a_deleted_model_of_an_app_of_one_silo_lived_there(
    several: Configure, mixed_app: SimpleNamespace, silo_models: Any
) -> None:
    mixed_app.get_models = lambda: [silo_models.Invoice]
    assert runs_on("silo_tests", "gone") == {"control"}


def test_a_model_as_a_migration_sees_it_is_routed_like_the_real_one(
    several: Configure, mixed_app: object
) -> None:
    state = ProjectState()
    fields = [("id", models.BigAutoField(primary_key=True))]
    state.add_model(ModelState("silo_tests", "Invoice", fields))
    historical = state.apps.get_model("silo_tests", "Invoice")
    assert silo_of(historical) is SiloMode.CONTROL
    assert SiloRouter().db_for_read(historical) == "control"


@pytest.mark.django_db(databases=list(SILOS))
def test_operations_of_a_migration_touch_only_the_silos_that_they_belong_to(
    several: Configure, mixed_app: object
) -> None:
    ran_on: list[str] = []
    operations: list[Any] = [
        migrations.CreateModel("Tenant", [("id", models.BigAutoField(primary_key=True))]),
        migrations.RunPython(
            lambda _apps, editor: ran_on.append(editor.connection.alias),
            hints={"silo": SiloMode.CONTROL},
        ),
    ]
    for alias in SILOS:
        migration = type("Migration", (migrations.Migration,), {"operations": operations})
        with connections[alias].schema_editor() as editor:
            migration("0001_initial", "silo_tests").apply(ProjectState(), editor)
    with_table = {
        alias
        for alias in SILOS
        if "silo_tests_tenant" in connections[alias].introspection.table_names()
    }
    assert with_table == {"cell_us", "cell_eu"}
    assert ran_on == ["control"]
