"""Changes reach the other silos and deletions remove them there; without it acme would be a bad example."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.utils import timezone

from fixtures.acme import audit, factories, organizations
from fixtures.acme.categories import Category
from fixtures.acme.models import (
    ApiToken,
    ApiTokenReplica,
    AuditLogEntry,
    AuthProvider,
    AuthProviderReplica,
    Organization,
    OrganizationMapping,
    OrganizationMember,
    OrganizationMemberMapping,
    Project,
    ProjectMapping,
    RemovedProject,
    Team,
    TeamMapping,
    User,
    UserReplica,
)
from fixtures.acme.services import (
    Answer,
    RpcAuditEvent,
    RpcMember,
    directory_service,
    organization_service,
)
from hybridcloud.testutils import (
    assert_outbox,
    assume_test_silo_mode,
    assume_test_silo_mode_of,
    outbox_runner,
    pending_messages,
    refute_outbox,
    run_cascades,
)
from silos import SiloMode, find_cells_for_orgs, find_cells_for_user
from silos.errors import CellMappingNotFoundError

if TYPE_CHECKING:
    from django.db.models import Model

pytestmark = pytest.mark.django_db


def rows(model: type[Model], cell: str | None = None, **filters: object) -> list[dict[str, object]]:
    """Return the rows of a model in its silo, without their own ids."""
    with assume_test_silo_mode_of(model, cell=cell):
        found = list(model._default_manager.filter(**filters).order_by("pk").values())
    return [{name: value for name, value in row.items() if name != "id"} for row in found]


class Company:
    """An organization in each cell, one user in both, a user in `us` only; all delivered."""

    def __init__(self) -> None:
        with outbox_runner():
            self.us = factories.create_organization("Acme US", cell="us")
            self.eu = factories.create_organization("Acme EU", cell="eu")
            self.both = factories.create_user("both")
            self.local = factories.create_user("local")
            self.us_member = factories.create_member(self.us, self.both)
            self.eu_member = factories.create_member(self.eu, self.both)
            self.local_member = factories.create_member(self.us, self.local, role="owner")


@pytest.fixture
def company() -> Company:
    """Return a company that was replicated."""
    return Company()


def test_an_organization_is_mapped_with_its_cell(company: Company) -> None:
    assert rows(OrganizationMapping, organization_id=company.eu.id) == [
        {"organization_id": company.eu.id, "cell_name": "eu", "name": "Acme EU", "slug": "acme-eu"}
    ]


def test_a_renamed_organization_is_renamed_in_control(company: Company) -> None:
    with outbox_runner():
        company.us.update(name="Acme Incorporated")
    assert rows(OrganizationMapping, cell_name="us")[0]["name"] == "Acme Incorporated"


def test_members_of_two_cells_are_kept_apart_even_with_equal_ids(company: Company) -> None:
    mapped = rows(OrganizationMemberMapping)
    assert {(row["organization_id"], row["organizationmember_id"]) for row in mapped} == {
        (company.us.id, company.us_member.id),
        (company.eu.id, company.eu_member.id),
        (company.us.id, company.local_member.id),
    }


def test_a_user_is_copied_to_the_cells_of_their_memberships_only(company: Company) -> None:
    assert [row["username"] for row in rows(UserReplica, "us")] == ["both", "local"]
    assert [row["username"] for row in rows(UserReplica, "eu")] == ["both"]


def test_a_changed_user_changes_in_every_cell(company: Company) -> None:
    with outbox_runner(), assume_test_silo_mode_of(User):
        user = User.objects.get(id=company.both.id)
        user.email = "new@acme.example"
        user.save()
    for cell in ("us", "eu"):
        assert rows(UserReplica, cell, user_id=company.both.id)[0]["email"] == "new@acme.example"


def test_a_user_changed_by_a_queryset_changes_in_every_cell(company: Company) -> None:
    with outbox_runner(), assume_test_silo_mode_of(User):
        User.objects.filter(username="both").update(is_active=False)
    for cell in ("us", "eu"):
        assert rows(UserReplica, cell, user_id=company.both.id)[0]["is_active"] is False


def test_a_user_who_joins_a_second_cell_arrives_there(company: Company) -> None:
    with outbox_runner():
        factories.create_member(company.eu, company.local)
    assert [row["username"] for row in rows(UserReplica, "eu")] == ["both", "local"]
    assert find_cells_for_user(company.local.id) == {"us", "eu"}


def test_a_user_who_leaves_a_cell_is_removed_there_only(company: Company) -> None:
    with outbox_runner(), assume_test_silo_mode_of(OrganizationMember, cell="eu"):
        company.eu_member.delete()
    assert rows(UserReplica, "eu") == []
    assert [row["username"] for row in rows(UserReplica, "us")] == ["both", "local"]


def test_a_deleted_user_is_gone_everywhere_with_their_memberships(company: Company) -> None:
    with outbox_runner(), assume_test_silo_mode_of(User):
        User.objects.get(id=company.both.id).delete()
    with outbox_runner():
        run_cascades()
    for cell in ("us", "eu"):
        assert rows(UserReplica, cell, user_id=company.both.id) == []
        assert rows(OrganizationMember, cell, user_id=company.both.id) == []
    assert rows(OrganizationMemberMapping, user_id=company.both.id) == []
    assert [row["user_id"] for row in rows(OrganizationMember, "us")] == [company.local.id]


def test_a_member_of_a_user_who_is_gone_is_removed(company: Company) -> None:
    with assume_test_silo_mode_of(OrganizationMember, cell="us"), outbox_runner():
        OrganizationMember.objects.create(organization=company.us, user_id=company.both.id + 10_000)
    assert len(rows(OrganizationMember, "us")) == 2
    assert len(rows(OrganizationMemberMapping, cell_name="us")) == 2


def test_a_token_is_copied_by_hash_and_revoked_in_all_cells(company: Company) -> None:
    with outbox_runner():
        token = factories.create_api_token(company.local, name="deploy")
    for cell in ("us", "eu"):
        assert rows(ApiTokenReplica, cell) == [
            {
                "api_token_id": token.id,
                "user_id": company.local.id,
                "name": "deploy",
                "token_hash": token.token_hash,
            }
        ]
    with outbox_runner(), assume_test_silo_mode_of(ApiToken):
        ApiToken.objects.filter(user_id=company.local.id).delete()
    assert rows(ApiTokenReplica, "us") == rows(ApiTokenReplica, "eu") == []


def test_a_login_provider_is_copied_changed_and_removed(company: Company) -> None:
    with outbox_runner():
        provider = factories.create_auth_provider(company.eu, domain="old.example")
    assert rows(AuthProviderReplica, "us") == []
    with outbox_runner(), assume_test_silo_mode_of(AuthProvider):
        provider.update(domain="new.example")
    assert [row["domain"] for row in rows(AuthProviderReplica, "eu")] == ["new.example"]
    with outbox_runner(), assume_test_silo_mode_of(AuthProvider):
        AuthProvider.objects.get(id=provider.id).delete()
    assert rows(AuthProviderReplica, "eu") == []


def test_a_deleted_organization_leaves_nothing_anywhere(company: Company) -> None:
    with outbox_runner():
        team = factories.create_team(company.eu)
        factories.create_project(company.eu, "Rocket", team=team)
        factories.create_auth_provider(company.eu)
    assert rows(AuthProviderReplica, "eu")
    with outbox_runner(), assume_test_silo_mode_of(Organization, cell="eu"):
        Organization.objects.get(id=company.eu.id).delete()
    for model in (OrganizationMapping, OrganizationMemberMapping, TeamMapping, ProjectMapping):
        assert rows(model, organization_id=company.eu.id) == [], model
    for model in (Organization, OrganizationMember, Team, Project):
        assert rows(model, "eu") == [], model
    assert rows(AuthProvider) == rows(AuthProviderReplica, "eu") == rows(UserReplica, "eu") == []
    with pytest.raises(CellMappingNotFoundError):
        find_cells_for_orgs([company.eu.id])


def test_a_team_is_mapped_with_its_last_actor(company: Company) -> None:
    team = factories.create_team(company.us, "Core")
    for actor in (1, 2):
        team.actor_id = actor
        team.save()
    with outbox_runner():
        pass
    assert rows(TeamMapping) == [
        {
            "organization_id": company.us.id,
            "team_id": team.id,
            "name": "Core",
            "slug": "core",
            "last_actor_id": 2,
        }
    ]
    with outbox_runner():
        team.delete()
    assert rows(TeamMapping) == []


def test_a_project_without_its_deleted_team_is_updated_in_control(company: Company) -> None:
    with outbox_runner():
        team = factories.create_team(company.us)
        factories.create_project(company.us, team=team)
    assert [row["team_id"] for row in rows(ProjectMapping)] == [team.id]
    with outbox_runner():
        team.delete()
    assert [row["team_id"] for row in rows(ProjectMapping)] == [None]


def test_a_deleted_project_leaves_its_slug(company: Company) -> None:
    with outbox_runner():
        project = factories.create_project(company.us, "Rocket")
    identifier = project.id
    with outbox_runner():
        project.delete()
    assert rows(ProjectMapping) == []
    assert rows(RemovedProject) == [
        {"organization_id": company.us.id, "project_id": identifier, "slug": "rocket"}
    ]


def test_every_audit_event_arrives_once(company: Company) -> None:
    with outbox_runner():
        events = {
            audit.record_event(company.us.id, "login", actor_id=company.local.id) for _ in range(5)
        }
    assert {row["event_id"] for row in rows(AuditLogEntry)} == events


def test_an_audit_event_delivered_again_is_not_doubled() -> None:
    event = RpcAuditEvent(event_id=uuid4(), organization_id=1, action="login", at=timezone.now())
    for _ in range(2):
        directory_service.record_audit_event(event=event)
    assert len(rows(AuditLogEntry)) == 1


def test_a_member_before_its_organization_waits_for_it() -> None:
    organization = factories.create_organization()
    user = factories.create_user()
    with outbox_runner():
        pass
    with assume_test_silo_mode_of(OrganizationMapping):
        OrganizationMapping.objects.all().delete()
    member = RpcMember(id=1, organization_id=organization.id, user_id=user.id, cell_name="us")
    assert directory_service.upsert_member(member=member) is Answer.ORGANIZATION_UNKNOWN

    with outbox_runner():
        factories.create_member(organization, user)
    assert rows(OrganizationMemberMapping) == []
    (waiting,) = pending_messages(category=Category.ORGANIZATION_MEMBER_UPDATE, parked=True)
    assert waiting.reason == "delayed"

    with outbox_runner(include_delayed=True):
        organization.save()
    assert [row["user_id"] for row in rows(OrganizationMemberMapping)] == [user.id]


def test_a_member_added_and_removed_between_two_drains_leaves_nothing(company: Company) -> None:
    with outbox_runner():
        member = factories.create_member(company.eu, company.local)
        with assume_test_silo_mode_of(OrganizationMember, cell="eu"):
            member.delete()
    assert rows(OrganizationMemberMapping, user_id=company.local.id, cell_name="eu") == []
    assert rows(UserReplica, "eu", user_id=company.local.id) == []


def test_delivering_everything_again_changes_nothing(company: Company) -> None:
    with outbox_runner():
        factories.create_project(company.us, team=factories.create_team(company.us))
        factories.create_api_token(company.both)
    models = (
        (OrganizationMapping, None),
        (OrganizationMemberMapping, None),
        (TeamMapping, None),
        (ProjectMapping, None),
        (UserReplica, "us"),
        (UserReplica, "eu"),
        (ApiTokenReplica, "us"),
        (ApiTokenReplica, "eu"),
    )
    before = [rows(model, cell) for model, cell in models]
    assert all(before)
    for model, cell in (
        (Organization, "us"),
        (OrganizationMember, "us"),
        (Team, "us"),
        (Project, "us"),
        (Organization, "eu"),
        (User, None),
        (ApiToken, None),
    ):
        with assume_test_silo_mode_of(model, cell=cell), outbox_runner():
            for instance in model._default_manager.all():
                instance.save()
    assert [rows(model, cell) for model, cell in models] == before
    refute_outbox()


def test_a_cell_makes_an_organization_with_an_id_from_control() -> None:
    with assume_test_silo_mode(SiloMode.CELL, cell="eu"), outbox_runner():
        organization = organizations.create_organization(name="New", slug="new", actor_id=3)
    assert rows(OrganizationMapping)[0]["organization_id"] == organization.id
    (entry,) = rows(AuditLogEntry)
    assert (entry["action"], entry["actor_id"]) == ("organization.create", 3)


@pytest.mark.silo("MONOLITH", "CONTROL", "CELL")
def test_organizations_and_users_are_found_from_every_silo() -> None:
    company = Company()
    assert find_cells_for_orgs([company.us.id, company.eu.id]) == {"us", "eu"}
    assert find_cells_for_user(company.local.id) == {"us"}


def test_control_asks_an_organizations_cell(company: Company) -> None:
    with assume_test_silo_mode(SiloMode.CONTROL):
        found = organization_service.get_organization(organization_id=company.eu.id)
    assert found is not None
    assert (found.name, found.cell_name) == ("Acme EU", "eu")


def test_membership_messages_are_written_once_per_new_membership(company: Company) -> None:
    with assume_test_silo_mode_of(OrganizationMember, cell="us"):
        company.us_member.update(role="owner")
    with assume_test_silo_mode(SiloMode.CELL, cell="us"):
        message = assert_outbox(category=Category.ORGANIZATION_MEMBER_UPDATE)[0]
        message.drain_shard()
    refute_outbox(category=Category.USER_UPDATE)
