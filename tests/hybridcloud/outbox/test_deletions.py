"""Whatever deletes a row, its message is written while there is something to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, models, transaction
from django.db.models.signals import pre_delete
from django.test.utils import CaptureQueriesContext

from fixtures.acme.categories import Category
from fixtures.acme.factories import (
    create_member,
    create_organization,
    create_project,
    create_team,
    create_user,
)
from fixtures.acme.models import Project, Team, UserReplica
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.write.deletions import uncovered_relations, update_through_managers
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US
from .writing import inserts, recorded
from .zoo import Animal, Bird, House, Label, Pen, TameAnimal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.usefixtures("zoo")]

TEAM, PROJECT = Category.TEAM_UPDATE.value, Category.PROJECT_UPDATE.value
ANIMAL, LABEL = 9101, 9102


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


class TestCascades:
    def test_all_that_hangs_on_a_row_is_told_of_in_one_insert(self) -> None:
        org = create_organization(cell="us")
        rows = [
            create_member(org, create_user()),
            create_team(org),
            create_project(org, slug="gone"),
        ]
        expected = {(Category.ORGANIZATION_UPDATE.value, org.id)} | {
            (category.value, each.id)
            for category, each in zip(
                (
                    Category.ORGANIZATION_MEMBER_UPDATE,
                    Category.TEAM_UPDATE,
                    Category.PROJECT_UPDATE,
                ),
                rows,
                strict=True,
            )
        }
        shard = org.id
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            org.delete()
        assert {(each[2], each[3]) for each in made} == expected
        assert {each[1] for each in made} == {shard}
        assert {"slug": "gone"} in [each[-1] for each in made]
        assert len(inserts(queries)) == 1

    def test_set_null_tells_of_the_rows_that_stay(self) -> None:
        org = create_organization(cell="us")
        team = create_team(org)
        project = create_project(org, team=team)
        team_id = team.id
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            team.delete()
        assert sorted(made) == [
            (0, org.id, PROJECT, project.id, {"slug": project.slug}),
            (0, org.id, TEAM, team_id, {"actor_id": None}),
        ]
        assert Project.objects.get().team_id is None
        assert len(inserts(queries)) == 1

    def test_set_null_of_a_queryset_tells_as_well(self) -> None:
        org = create_organization(cell="us")
        projects = [create_project(org, team=create_team(org)) for _ in range(2)]
        with recorded() as made:
            Team.objects.all().delete()
        assert {each[3] for each in made if each[2] == PROJECT} == {each.id for each in projects}

    def test_set_default_tells_of_the_rows_that_stay(self) -> None:
        pens = [Pen.objects.create() for _ in range(2)]
        label = Label.objects.create(animal=Animal.objects.create(pen=pens[0]), spare=pens[1])
        with recorded() as made:
            pens[1].delete()
        assert {(each[2], each[3]) for each in made} >= {(LABEL, label.id)}
        assert Label.objects.get().spare_id is None

    def test_a_foreign_parents_cascade_tells_at_once(self) -> None:
        house = House.objects.create()
        animals = [Animal.objects.create(pen=Pen.objects.create(), house=house) for _ in range(2)]
        with recorded() as made:
            house.delete()
        assert {(each[1], each[2], each[3]) for each in made} == {
            (each.pen_id, ANIMAL, each.id) for each in animals
        }

    def test_a_foreign_parents_cascade_inside_a_block_is_one_insert(self) -> None:
        house = House.objects.create()
        for _ in range(3):
            Animal.objects.create(pen=Pen.objects.create(), house=house)
        with (
            CaptureQueriesContext(connections[US]) as queries,
            outbox_context(transaction.atomic(using=US)),
        ):
            house.delete()
        assert len(inserts(queries)) == 1

    def test_models_that_produce_nothing_are_deleted_fast(self) -> None:
        assert not pre_delete.has_listeners(UserReplica)
        assert not pre_delete.has_listeners(House)
        assert pre_delete.has_listeners(Project)


class TestOneMessageEach:
    @pytest.mark.parametrize("kind", [Animal, Bird, TameAnimal])
    @pytest.mark.parametrize("how", ["instance", "queryset", "bulk_delete"])
    def test_roots_children_and_proxies(self, kind: type[Animal], how: str) -> None:
        made_of: type[Animal] = Bird if kind is Bird else Animal
        animal = made_of.objects.create(pen=Pen.objects.create())
        found = kind.objects.get(pk=animal.pk)
        with recorded() as made:
            if how == "instance":
                found.delete()
            elif how == "queryset":
                kind.objects.filter(pk=animal.pk).delete()
            else:
                kind.objects.bulk_delete([found])
        assert made == [(9100, animal.pen_id, ANIMAL, animal.pk, None)]
        assert not Animal.objects.exists()

    def test_a_child_that_is_deleted_through_its_root(self) -> None:
        bird = Bird.objects.create(pen=Pen.objects.create())
        with recorded() as made:
            Animal.objects.all().delete()
        assert [each[3] for each in made] == [bird.pk]

    def test_a_child_that_leaves_its_root_behind_has_changed(self) -> None:
        bird = Bird.objects.create(pen=Pen.objects.create())
        pk = bird.pk
        with recorded() as made:
            bird.delete(keep_parents=True)
        assert [each[3] for each in made] == [pk]
        assert Animal.objects.filter(pk=pk).exists()
        assert not Bird.objects.exists()

    def test_a_path_to_the_shard_is_followed_before_its_parents_go(self) -> None:
        pen = Pen.objects.create()
        label = Label.objects.create(animal=Animal.objects.create(pen=pen))
        with recorded() as made:
            pen_id = pen.pk
            Pen.objects.filter(pk=pen.pk).delete()
        assert (9100, pen_id, LABEL, label.pk, None) in made

    def test_an_instance_that_was_never_saved_is_djangos_error(self) -> None:
        with transaction.atomic(using=US):
            with pytest.raises(ValueError, match="can't be deleted"):
                Project().delete()
            assert not Project.objects.exists()


class TestUncovered:
    """What changes rows without a message is named, for a check to refuse."""

    @pytest.mark.parametrize(
        ("on_delete", "says"),
        [
            (getattr(models, "DB_CASCADE", None), "DB_CASCADE changes rows inside the database"),
            (lambda *_: None, "none of Django's"),
        ],
    )
    def test_it_is_named(self, on_delete: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if on_delete is None:
            pytest.skip("this Django has no on_delete in the database")
        assert list(uncovered_relations(Project)) == []
        field = Project._meta.get_field("team")
        monkeypatch.setattr(field.remote_field, "on_delete", on_delete)
        ((found, reason),) = uncovered_relations(Project)
        assert found is field
        assert says in reason

    @pytest.mark.parametrize("value", [None, lambda: None])
    def test_set_is_covered(self, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        field = Project._meta.get_field("team")
        monkeypatch.setattr(field.remote_field, "on_delete", models.SET(value))
        update_through_managers(Project)
        assert list(uncovered_relations(Project)) == []
        org = create_organization(cell="us")
        project = create_project(org, team=create_team(org))
        with recorded() as made:
            Team.objects.get().delete()
        assert project.id in {each[3] for each in made if each[2] == PROJECT}
