"""Every way to change rows of a cell's models writes the right messages: scope, shard, category, object, payload."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import F

from fixtures.acme.categories import Category
from fixtures.acme.factories import (
    create_member,
    create_organization,
    create_project,
    create_team,
    create_user,
)
from fixtures.acme.models import Organization, OrganizationMember, Project, Team
from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US
from .writing import recorded, rolled_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(databases=ALIASES)

ORG, MEMBER, TEAM, PROJECT = (
    Category.ORGANIZATION_UPDATE.value,
    Category.ORGANIZATION_MEMBER_UPDATE.value,
    Category.TEAM_UPDATE.value,
    Category.PROJECT_UPDATE.value,
)


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture
def other() -> Organization:
    return create_organization(cell="us")


@pytest.fixture
def member(org: Organization) -> OrganizationMember:
    return create_member(org, create_user())


@pytest.fixture
def team(org: Organization) -> Team:
    return create_team(org)


@pytest.fixture
def project(org: Organization, team: Team) -> Project:
    return create_project(org, team=team)


class TestInstances:
    def test_creating_and_saving_a_scopes_owner(self) -> None:
        with recorded() as made:
            org = create_organization(cell="us")
            org.name = "New"
            org.save()
        assert made == [(0, org.id, ORG, org.id, None)] * 2

    def test_saving_a_row_of_a_shard(self, member: OrganizationMember) -> None:
        with recorded() as made:
            member.save()
            member.save(update_fields=["role"])
        assert made == [(0, member.organization_id, MEMBER, member.id, None)] * 2

    def test_saving_no_fields_is_no_change(self, member: OrganizationMember) -> None:
        with recorded() as made:
            member.save(update_fields=[])
        assert made == []

    def test_the_payload_is_of_the_moment(self, project: Project) -> None:
        with recorded() as made:
            project.slug = "renamed"
            project.save()
        assert made == [(0, project.organization_id, PROJECT, project.id, {"slug": "renamed"})]

    def test_a_model_that_makes_its_message_itself(self, team: Team) -> None:
        with recorded() as made:
            team.actor_id = 5
            team.save()
        assert made == [(0, team.organization_id, TEAM, team.id, {"actor_id": 5})]

    def test_update_of_an_instance(self, project: Project) -> None:
        with recorded() as made:
            assert project.update(slug="renamed", archived=True) == 1
        assert project.slug == "renamed"
        project.refresh_from_db()
        assert (project.slug, project.archived) == ("renamed", True)
        assert made == [(0, project.organization_id, PROJECT, project.id, {"slug": "renamed"})]

    def test_update_of_an_instance_with_an_expression(self, member: OrganizationMember) -> None:
        with recorded() as made:
            member.update(user_id=F("user_id") + 1)
        assert member.user_id == OrganizationMember.objects.get(pk=member.pk).user_id
        assert len(made) == 1

    def test_update_of_an_instance_that_is_gone(self, member: OrganizationMember) -> None:
        OrganizationMember.objects.filter(pk=member.pk).delete()
        with recorded() as made:
            assert member.update(role="owner") == 0
        assert made == []

    def test_deleting_a_row(self, project: Project) -> None:
        pk = project.pk
        with recorded() as made:
            assert project.delete() == (1, {"acme.Project": 1})
        assert made == [(0, project.organization_id, PROJECT, pk, {"slug": project.slug})]
        assert project.pk is None

    def test_get_or_create_and_update_or_create(self, org: Organization) -> None:
        with recorded() as made:
            created, _ = OrganizationMember.objects.get_or_create(organization=org, user_id=7)
            OrganizationMember.objects.get_or_create(organization=org, user_id=7)
        assert made == [(0, org.id, MEMBER, created.id, None)]
        with recorded() as made:
            for role in ("owner", "member"):
                OrganizationMember.objects.update_or_create(
                    organization=org, user_id=7, defaults={"role": role}
                )
        assert made == [(0, org.id, MEMBER, created.id, None)] * 2

    def test_async_twins(self, org: Organization) -> None:
        async def change() -> int:
            member = await OrganizationMember.objects.acreate(organization=org, user_id=7)
            await member.asave()
            await OrganizationMember.objects.filter(pk=member.pk).aupdate(role="owner")
            pk = member.pk
            await member.adelete()
            return pk

        with recorded() as made:
            pk = async_to_sync(change)()
        assert made == [(0, org.id, MEMBER, pk, None)] * 4


class TestQuerysets:
    def test_update_tells_of_each_row_once_in_the_order_of_ids(
        self, org: Organization, other: Organization
    ) -> None:
        rows = [create_member(each, create_user()) for each in (org, other, org)]
        with recorded() as made:
            assert OrganizationMember.objects.order_by("-id").update(role="owner") == 3
        assert made == [(0, each.organization_id, MEMBER, each.id, None) for each in rows]

    def test_update_with_a_payload_sends_the_new_one(self, project: Project) -> None:
        with recorded() as made:
            assert Project.objects.filter(slug=project.slug).update(slug="renamed") == 1
        assert made == [(0, project.organization_id, PROJECT, project.id, {"slug": "renamed"})]

    def test_update_of_a_model_that_makes_its_message_itself(self, team: Team) -> None:
        with recorded() as made:
            assert Team.objects.update(name="X") == 1
        assert made == [(0, team.organization_id, TEAM, team.id, {"actor_id": None})]

    def test_update_that_matches_nothing(self, org: Organization) -> None:
        with recorded() as made:
            assert OrganizationMember.objects.update(role="owner") == 0
            assert OrganizationMember.objects.filter(pk__in=[]).update(role="owner") == 0
            assert OrganizationMember.objects.none().update(role="owner") == 0
            assert Project.objects.update(name="X") == 0
        assert made == []

    def test_delete_tells_of_each_row(self, org: Organization) -> None:
        rows = [create_member(org, create_user()) for _ in range(3)]
        ids = [each.id for each in rows]
        with recorded() as made:
            deleted, _ = OrganizationMember.objects.filter(organization=org).delete()
        assert deleted == 3
        assert made == [(0, org.id, MEMBER, pk, None) for pk in ids]


class TestRelatedManagers:
    def test_add_remove_and_clear_go_through_the_producing_update(
        self, org: Organization, team: Team
    ) -> None:
        projects = [create_project(org) for _ in range(2)]
        expected = [(0, org.id, PROJECT, each.id, {"slug": each.slug}) for each in projects]
        with recorded() as made:
            team.projects.add(*projects)
        assert made == expected
        with recorded() as made:
            team.projects.remove(projects[0])
        assert made == expected[:1]
        with recorded() as made:
            team.projects.clear()
        assert made == expected[1:]
        assert not team.projects.exists()

    def test_set_tells_of_what_comes_and_what_goes(self, org: Organization, team: Team) -> None:
        old, new = create_project(org, team=team), create_project(org)
        with recorded() as made:
            team.projects.set([new])
        assert sorted(each[3] for each in made) == [old.id, new.id]

    def test_create_through_a_relation(self, org: Organization) -> None:
        with recorded() as made:
            member = org.members.create(user_id=7)
        assert made == [(0, org.id, MEMBER, member.id, None)]


class TestAtomicity:
    @pytest.mark.parametrize(
        "change",
        [
            lambda p: p.save(),
            lambda p: p.update(name="X"),
            lambda p: p.delete(),
            lambda p: Project.objects.update(name="X"),
            lambda p: OrganizationMember.objects.update(role="X"),
            lambda p: Project.objects.all().delete(),
            lambda p: Project.objects.bulk_update([p], ["name"]),
            lambda p: p.organization.delete(),
        ],
    )
    @pytest.mark.parametrize("gathered", [True, False])
    def test_a_savepoint_that_rolls_back_takes_changes_and_messages(
        self,
        project: Project,
        member: OrganizationMember,
        change: Callable[[Any], Any],
        gathered: bool,  # noqa: FBT001
    ) -> None:
        outer = transaction.atomic(using=US)
        with recorded() as made, outbox_context(outer) if gathered else outer:
            member.save()
            with rolled_back(transaction.atomic(using=US)):
                change(Project.objects.get(pk=project.pk))
            member.save()
        if gathered:
            assert made == [(0, member.organization_id, MEMBER, member.id, None)]
        else:
            assert made == [(0, member.organization_id, MEMBER, member.id, None)] * 2
        assert Project.objects.get(pk=project.pk).name == project.name

    def test_a_message_that_cannot_be_made_undoes_the_change(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: Project) -> dict[str, Any]:
            raise ZeroDivisionError

        monkeypatch.setattr(Project, "payload_for_update", broken)
        project.name = "X"
        for change in (
            project.save,
            lambda: Project.objects.update(name="X"),
            lambda: Project.objects.bulk_update([project], ["name"]),
            lambda: Project.objects.all().delete(),
            project.organization.delete,
        ):
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=US):
                change()
        assert Project.objects.get().name != "X"

    def test_a_caught_error_of_a_message_does_not_let_the_change_commit(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: Project) -> dict[str, Any]:
            raise ZeroDivisionError

        monkeypatch.setattr(Project, "payload_for_update", broken)
        for change in (
            lambda: Project.objects.update(name="X"),
            lambda: Project.objects.bulk_create(
                [Project(organization_id=project.organization_id, name="X", slug="x")]
            ),
        ):
            with transaction.atomic(using=US), suppress(ZeroDivisionError):
                change()
        assert not Project.objects.filter(name="X").exists()

    def test_a_deletion_that_is_protected_leaves_the_open_transaction_usable(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django.db.models import PROTECT, ProtectedError

        monkeypatch.setattr(
            Project._meta.get_field("organization").remote_field, "on_delete", PROTECT
        )
        with transaction.atomic(using=US):
            with pytest.raises(ProtectedError):
                project.organization.delete()
            with pytest.raises(ProtectedError):
                Organization.objects.filter(pk=project.organization_id).delete()
            with recorded() as made:
                project.save()
        assert len(made) == 1

    def test_an_object_saved_twice_in_a_block_is_one_message_with_the_last_payload(
        self, project: Project
    ) -> None:
        with recorded() as made, outbox_context(transaction.atomic(using=US)):
            for slug in ("a", "b"):
                project.slug = slug
                project.save()
        assert made == [(0, project.organization_id, PROJECT, project.id, {"slug": "b"})]

    def test_a_bulk_change_after_buffered_saves_has_the_newest_messages(
        self, member: OrganizationMember
    ) -> None:
        with recorded() as made, outbox_context(transaction.atomic(using=US)):
            Category.ORGANIZATION_MEMBER_UPDATE.as_cell_outbox(member, payload={"n": 1}).save()
            OrganizationMember.objects.update(role="owner")
        assert [each[-1] for each in made] == [{"n": 1}, None]
