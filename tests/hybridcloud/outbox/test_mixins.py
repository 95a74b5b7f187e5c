"""Producing models register themselves, keep producing whatever is put on top, and say what they lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import UserManager as DjangoUserManager
from django.db import models, transaction

from fixtures.acme.categories import Category
from fixtures.acme.factories import create_organization, create_project, create_team
from fixtures.acme.models import (
    ApiToken,
    AuthProvider,
    Organization,
    OrganizationMember,
    Project,
    Team,
    User,
)
from hybridcloud.errors import ConfigurationError, RegistryError
from hybridcloud.outbox import (
    CellOutbox,
    CellOutboxProducingModel,
    ControlOutboxProducingModel,
    ReplicatedCellModel,
    ReplicatedControlModel,
    outbox_context,
)
from hybridcloud.outbox.declare.category import (
    connected_mode,
    connected_models,
    restored_declarations,
)
from hybridcloud.outbox.deliver import flush as flushing
from hybridcloud.outbox.write.querysets import is_producing
from hybridcloud.outbox.write.registration import freeze_connected_models, producing_models, root_of
from hybridcloud.outbox.write.replicated import has_own_handlers
from silos import SiloMode, assume_silo, cell_silo_model, control_silo_model

from .conftest import ALIASES
from .engine import US
from .writing import recorded
from .zoo import Animal, Beast, Bird, TameAnimal, zoo_apps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.deliver.flush import Written

in_database = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture
def declaring(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the models that a test declares."""
    from hybridcloud.outbox.write import registration

    monkeypatch.setattr(registration, "_roots", list(registration._roots))
    models_of_zoo = dict(zoo_apps.all_models["zoo"])
    with restored_declarations():
        yield
    zoo_apps.all_models["zoo"].clear()
    zoo_apps.all_models["zoo"].update(models_of_zoo)
    zoo_apps.clear_cache()


def declare(name: str, *bases: Any, **members: Any) -> Any:
    """Declare a model as an app's module would."""
    meta = members.pop("Meta", {})
    space = {
        "__module__": __name__,
        "Meta": type("Meta", (), {"app_label": "zoo", "apps": zoo_apps, **meta}),
        **members,
    }
    return type(models.Model)(name, bases, space)


class TestRegistration:
    def test_a_category_knows_the_model_whose_handlers_are_for_it(self) -> None:
        assert connected_models.get(Category.PROJECT_UPDATE) is Project
        assert connected_models.get(Category.USER_UPDATE) is User
        assert connected_mode(Category.PROJECT_UPDATE) is SiloMode.CELL
        assert connected_mode(Category.USER_UPDATE) is SiloMode.CONTROL
        # A model that makes its messages itself has no handlers of its own.
        assert connected_models.get(Category.TEAM_UPDATE) is None
        assert Team in producing_models()

    def test_proxies_and_children_share_their_roots_registration(self) -> None:
        assert root_of(Animal) is root_of(Bird) is root_of(TameAnimal) is Animal
        assert Animal in producing_models()
        assert Bird not in producing_models()
        assert TameAnimal not in producing_models()

    @pytest.mark.usefixtures("declaring")
    def test_a_second_model_of_a_category_is_refused(self) -> None:
        with pytest.raises(
            RegistryError, match=r"Duplicate model of the outbox category .*PROJECT"
        ):
            declare("Second", ReplicatedCellModel, category=Category.PROJECT_UPDATE)

    @pytest.mark.usefixtures("declaring")
    def test_a_category_may_stand_on_an_abstract_base_of_one_model(self) -> None:
        base = declare(
            "Base", ReplicatedCellModel, category=Category.TEAM_UPDATE, Meta={"abstract": True}
        )
        assert connected_models.get(Category.TEAM_UPDATE) is None
        only = declare("Only", base)
        assert connected_models.get(Category.TEAM_UPDATE) is only
        with pytest.raises(RegistryError, match="Duplicate model"):
            declare("Another", base)

    @pytest.mark.usefixtures("declaring")
    @pytest.mark.parametrize("members", [{}, {"category": 3}])
    def test_a_replicated_model_without_a_category_is_refused(self, members: Any) -> None:
        with pytest.raises(
            ConfigurationError, match=r"No category of zoo\.Nameless: it is (None|3)"
        ):
            declare("Nameless", ReplicatedCellModel, **members)

    @pytest.mark.usefixtures("declaring")
    def test_a_child_of_another_category_is_refused(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"Another category of zoo\.Fish: it is LABEL, and zoo\.Animal"
        ):
            declare("Fish", Animal, category=Beast.LABEL)

    @pytest.mark.usefixtures("declaring")
    @pytest.mark.parametrize(
        ("mixin", "decorator", "says"),
        [
            (ReplicatedCellModel, control_silo_model, "lives in the control silo"),
            (ReplicatedControlModel, cell_silo_model, "lives in the cells"),
            (ReplicatedCellModel, lambda model: model, "lives in no silo in particular"),
        ],
    )
    def test_the_silo_is_checked_when_the_registry_freezes(
        self, mixin: Any, decorator: Any, says: str
    ) -> None:
        decorator(declare("Lost", mixin, category=Category.TEAM_UPDATE))
        with pytest.raises(ConfigurationError, match=rf"Wrong silo of zoo\.Lost: it {says}"):
            freeze_connected_models()

    @pytest.mark.usefixtures("declaring")
    def test_a_frozen_registry_takes_no_more(self) -> None:
        freeze_connected_models()
        with pytest.raises(RegistryError, match="Late model of the outbox category"):
            declare("Late", ReplicatedCellModel, category=Category.TEAM_UPDATE)


class TestBases:
    @pytest.mark.parametrize("model", [Organization, OrganizationMember, Team, Project, User])
    def test_the_base_manager_is_the_producing_unfiltered_one(self, model: Any) -> None:
        assert model._base_manager.name == "outbox_rows"
        assert is_producing(model._base_manager)
        assert is_producing(model._default_manager)
        assert model._default_manager.name == "objects"

    def test_a_manager_of_both_kinds_produces_and_keeps_its_own_methods(self) -> None:
        assert isinstance(User.objects, DjangoUserManager)
        assert is_producing(User.objects)

    @pytest.mark.usefixtures("declaring")
    def test_a_plain_manager_is_told_from_a_producing_one(self) -> None:
        model = declare(
            "Unmanaged",
            ReplicatedCellModel,
            category=Category.TEAM_UPDATE,
            objects=models.Manager(),
        )
        assert not is_producing(model.objects)
        assert is_producing(model._base_manager)

    def test_handlers_that_a_model_lacks_are_seen(self) -> None:
        class Neither(ReplicatedCellModel):
            class Meta:
                abstract = True

        class Deletion(Neither):
            class Meta:
                abstract = True

            @classmethod
            def handle_async_deletion(cls, *_: Any, **__: Any) -> None:
                """Do something."""

        assert not has_own_handlers(Neither)
        assert has_own_handlers(Deletion)
        assert has_own_handlers(Project)
        assert has_own_handlers(ApiToken)
        assert not has_own_handlers(ReplicatedControlModel)

    def test_default_handlers_do_nothing(self) -> None:
        ReplicatedCellModel.handle_async_deletion(1, 1, None)
        ReplicatedControlModel.handle_async_deletion(1, "us", 1, None)
        ReplicatedCellModel.handle_async_replication(Project(), 1)
        ReplicatedControlModel.handle_async_replication(AuthProvider(), "us", 1)

    def test_a_model_that_makes_no_message_says_what_to_override(self) -> None:
        with pytest.raises(NotImplementedError, match=r"no outbox_for_update\(\)"):
            CellOutboxProducingModel.outbox_for_update(Team())
        with pytest.raises(NotImplementedError, match=r"no outboxes_for_update\(\)"):
            ControlOutboxProducingModel.outboxes_for_update(AuthProvider())

    def test_messages_can_be_made_by_hand(self) -> None:
        message = Project(id=10, organization_id=1, slug="a").outbox_for_update()
        assert type(message) is CellOutbox
        assert message.shard_key() == (0, 1)
        assert (message.object_identifier, message.payload) == (10, {"slug": "a"})
        assert Team(id=1, organization_id=1).outbox_for_update(5).shard_key() == (0, 5)


@in_database
class TestPreparing:
    def test_messages_are_written_before_or_after_the_block(self) -> None:
        project = create_project(create_organization(cell="us"), slug="old")
        for before in (True, False):
            with recorded() as made, project.prepare_outboxes(outbox_before_super=before):
                project.slug = "new" if before else "newest"
            assert [each[-1] for each in made] == [{"slug": "old" if before else "newest"}]

    def test_a_save_and_its_message_are_one_transaction(self) -> None:
        org = create_organization(cell="us")

        def broken(_: Any) -> Any:
            raise ZeroDivisionError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Team, "outbox_for_update", broken)
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=US):
                create_team(org)
        assert not Team.objects.exists()

    def test_a_row_is_saved_to_the_database_that_is_asked_for(self) -> None:
        with recorded() as made, assume_silo(SiloMode.MONOLITH):
            Organization(id=7001, name="A", slug="a").save(using=US)
        assert [each[3] for each in made] == [7001]


@pytest.mark.django_db(transaction=True, databases=ALIASES)
class TestFlush:
    @pytest.mark.parametrize(
        ("default", "context", "flushed"),
        [
            (None, None, True),
            (None, False, False),
            (True, False, True),
            (False, None, False),
            (False, True, False),
        ],
    )
    def test_the_models_default_wins_over_what_is_inherited(
        self,
        default: Any,
        context: Any,
        flushed: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen: list[Written] = []
        with outbox_context(flush=False):
            project = create_project(create_organization(cell="us"))
        monkeypatch.setattr(flushing, "flush_written", lambda written, _: seen.append(written))
        monkeypatch.setattr(Project, "default_flush", default)
        monkeypatch.setattr(OrganizationMember, "default_flush", default)
        for change in (
            project.save,
            lambda: Project.objects.update(name="X"),
            lambda: Project.objects.bulk_update([project], ["name"]),
            lambda: OrganizationMember.objects.create(
                organization_id=project.organization_id, user_id=1
            ),
            lambda: OrganizationMember.objects.update(role="X"),
            project.delete,
        ):
            seen.clear()
            if context is None:
                change()
            else:
                with transaction.atomic(using=US), outbox_context(flush=context):
                    change()
            assert bool(seen) is flushed
