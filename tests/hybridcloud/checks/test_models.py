"""Models some of whose changes would write no message are found; without it copies would go stale unseen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.apps.registry import Apps
from django.core.checks import run_checks
from django.db import models

from fixtures.acme.models import Project
from hybridcloud.checks.models import check_producing_models, check_scopes
from hybridcloud.outbox import (
    CellOutboxProducingManager,
    CellOutboxProducingModel,
    ControlOutbox,
    OutboxCategory,
    OutboxScope,
    ReplicatedCellModel,
    scope_categories,
)
from hybridcloud.outbox.declare.category import connected_models, restored_declarations
from hybridcloud.outbox.write import registration
from silos import cell_silo_model, control_silo_model

if TYPE_CHECKING:
    from collections.abc import Iterator


class Crop(OutboxCategory):
    """Categories that a model has for the time of a test."""

    FIELD = 9920
    ROW = 9921


class Farm(OutboxScope, categories=Crop):
    """A scope with an owner and a shard key, and one with neither."""

    FARM = scope_categories(9920, {Crop.FIELD}, shard_key="farm_id", owner="checks.Farm")
    KEYLESS = scope_categories(9921, {Crop.ROW})


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the models that a test declares."""
    monkeypatch.setattr(registration, "_roots", [*registration._roots])
    with restored_declarations():
        yield


def declare(
    *bases: type, decorate: Any = cell_silo_model, name: str = "Field", **members: Any
) -> Any:
    """Declare a model as an app's module would, in a registry of its own."""
    options = {"app_label": "checks", "apps": Apps(), **members.pop("meta", {})}
    parts = {"__module__": __name__, "Meta": type("Meta", (), options), **members}
    # Not longer than this: a category has one model, and a test declares several.
    with connected_models.opened():
        return decorate(type(models.Model)(name, bases, parts))


class Handlers:
    """Handlers that a replicated model must have."""

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Do nothing."""


def field(*bases: type, **members: Any) -> Any:
    """Declare a replicated model without a mistake, but for what is given; None: without."""
    given: dict[str, Any] = {"category": Crop.FIELD, "farm_id": models.BigIntegerField()}
    parts = {name: part for name, part in {**given, **members}.items() if part is not None}
    return declare(*(bases or (Handlers, ReplicatedCellModel)), **parts)


def ids(*found: Any) -> list[str]:
    """Return the ids of the findings about models."""
    app: Any = SimpleNamespace(get_models=lambda: list(found))
    return [message.id for message in check_producing_models([app])]


def text(found: Any) -> str:
    """Return the text and hint of the only finding about a model."""
    app: Any = SimpleNamespace(get_models=lambda: [found])
    (message,) = check_producing_models([app])
    return f"{message.msg} {message.hint}"


def test_acme_has_no_findings() -> None:
    assert check_producing_models() == []
    assert check_scopes() == []


def test_a_model_without_a_mistake_has_no_findings() -> None:
    assert ids(field()) == []


def test_models_that_produce_nothing_are_left_alone() -> None:
    assert ids(declare(models.Model)) == []


@pytest.mark.skipif(
    not hasattr(models, "DB_CASCADE"), reason="Django before 6.1 has no cascades in the database"
)
def test_they_are_run_by_manage_py_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Project._meta.get_field("team").remote_field, "on_delete", models.DB_CASCADE
    )
    assert "hybridcloud.E016" in {each.id for each in run_checks(tags=["hybridcloud"])}


def test_e003_categories_that_no_scope_class_names() -> None:
    class Lonely(OutboxCategory):
        ONE = 9930

    (found,) = check_scopes()
    assert found.id == "hybridcloud.E003"
    assert found.obj is Lonely
    assert "Lonely" in found.msg
    assert "categories=Lonely" in (found.hint or "")


def test_e003_a_model_of_such_a_category() -> None:
    class Lonely(OutboxCategory):
        ONE = 9930

    model = field(category=Lonely.ONE)
    assert ids(model) == ["hybridcloud.E003"]
    assert "category ONE of checks.Field has no scope" in text(model)


def test_e004_a_model_of_another_silo_than_its_outbox() -> None:
    assert ids(field(decorate=control_silo_model)) == ["hybridcloud.E004"]
    assert ids(field(outbox_type=ControlOutbox, category=Crop.FIELD)) == ["hybridcloud.E004"]


def test_e004_says_where_both_are() -> None:
    model = field(decorate=control_silo_model)
    assert "checks.Field lives in the control silo, its outbox in the cells." in text(model)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"farm_id": None}, "FARM has shard key 'farm_id', but checks.Field has no 'farm_id'"),
        ({"shard_key": "barn_id"}, "shard key 'barn_id', but checks.Field has no 'barn_id'"),
        ({"category": Crop.ROW}, "KEYLESS has no shard_key at all"),
    ],
)
def test_e005_a_shard_key_that_the_model_has_not(members: dict[str, Any], says: str) -> None:
    model = field(**members)
    assert ids(model) == ["hybridcloud.E005"]
    assert says in text(model)


def test_e005_follows_a_path_over_relations() -> None:
    def label(path: str) -> Any:
        owner = models.ForeignKey(Project, models.CASCADE, related_name="+")
        return field(shard_key=path, project=owner, farm_id=None)

    assert ids(label("project.organization_id")) == []
    model = label("project.barn_id")
    assert ids(model) == ["hybridcloud.E005"]
    assert "acme.Project has no 'barn_id'" in text(model)


def test_a_shard_that_is_a_property_is_told_by_instances_only() -> None:
    assert ids(field(farm_id=property(lambda _: 7))) == []


def test_the_owner_of_a_scope_needs_no_shard_key() -> None:
    assert ids(field(farm_id=None, name="Farm")) == []


def test_a_model_that_makes_its_messages_itself_names_the_shard_there() -> None:
    assert ids(field(farm_id=None, outbox_for_update=lambda *_, **__: None)) == []
    assert ids(declare(CellOutboxProducingModel)) == []


class Plain(models.Manager[Any]):
    """A manager of the project's own."""


class Both(CellOutboxProducingManager[Any], Plain):
    """It is derived as it should be."""


class Base(models.Model):
    """An abstract model with managers of its own, like AbstractUser."""

    objects: ClassVar[models.Manager[Any]] = Plain()

    class Meta:
        abstract = True
        base_manager_name = "objects"


def test_e006_a_base_manager_that_writes_no_messages() -> None:
    model = field(objects=Both(), rows=Plain(), meta={"base_manager_name": "rows"})
    assert ids(model) == ["hybridcloud.E006"]
    assert "The base manager of checks.Field writes no messages: it is a Plain." in text(model)
    assert "Put the mixin first among the bases, and derive `objects`" in text(model)


def test_e006_a_default_manager_that_writes_no_messages() -> None:
    model = field(objects=Plain())
    assert ids(model) == ["hybridcloud.E006"]
    assert "The default manager of checks.Field" in text(model)


def test_e006_the_mixin_behind_another_base() -> None:
    assert ids(field(Handlers, Base, ReplicatedCellModel)) == ["hybridcloud.E006"] * 2


def test_a_manager_of_both_and_plain_secondary_managers_are_fine() -> None:
    assert ids(field(Handlers, ReplicatedCellModel, Base, objects=Both(), plain=Plain())) == []


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (
            {"id": models.UUIDField(primary_key=True)},
            "No object identifier for messages of checks.Field: id of checks.Field is a UUIDField",
        ),
        ({"slug": models.SlugField(primary_key=True)}, "slug of checks.Field is a SlugField"),
        (
            {"pk": models.CompositePrimaryKey("farm_id", "row"), "row": models.IntegerField()},
            "pk of checks.Field is a CompositePrimaryKey",
        ),
        (
            {"farm_id": models.TextField()},
            "No shard identifier for messages of checks.Field: farm_id of checks.Field is a TextField",
        ),
        (
            {
                "farm_id": None,
                "shard_key": "project_id",
                "project": models.ForeignKey(
                    Project, models.CASCADE, to_field="slug", related_name="+"
                ),
            },
            "project of checks.Field is a ForeignKey",
        ),
    ],
    ids=["a UUID", "a text", "several columns", "a shard of text", "a key of text"],
)
def test_e017_a_key_that_is_not_an_integer(members: dict[str, Any], says: str) -> None:
    """Told by a plain check, neither at import nor at the first save."""
    model = field(**members)
    assert ids(model) == ["hybridcloud.E017"]
    assert says in text(model)


def test_e014_a_replicated_model_without_handlers() -> None:
    model = field(ReplicatedCellModel)
    assert ids(model) == ["hybridcloud.E014"]
    assert "its messages are lost" in text(model)


def test_one_handler_of_its_own_is_enough() -> None:
    class Deletion:
        @classmethod
        def handle_async_deletion(cls, **_: Any) -> None:
            """Do nothing."""

    assert ids(field(Deletion, ReplicatedCellModel)) == []


@pytest.mark.parametrize("name", ["DB_CASCADE", "DB_SET_NULL"])
def test_e016_a_deletion_inside_the_database(name: str) -> None:
    on_delete = getattr(models, name, None)
    if on_delete is None:
        pytest.skip("this Django has no on_delete in the database")
    model = field(team=models.ForeignKey(Project, on_delete, null=True, related_name="+"))
    assert ids(model) == ["hybridcloud.E016"]
    assert f"{name} changes rows inside the database" in text(model)


def test_e015_an_on_delete_of_the_projects_own() -> None:
    def detach(*_: Any) -> None:
        """Change rows in some way."""

    model = field(team=models.ForeignKey(Project, detach, related_name="+"))
    assert ids(model) == ["hybridcloud.E015"]
    assert "detach is none of Django's" in text(model)


@pytest.mark.parametrize("on_delete", [models.CASCADE, models.SET_NULL, models.SET(None)])
def test_what_django_does_to_rows_is_covered(on_delete: Any) -> None:
    team = models.ForeignKey(Project, on_delete, null=True, related_name="+")
    assert ids(field(team=team)) == []
