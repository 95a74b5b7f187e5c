"""Every change of acme's producing models writes a message; without it a replica could go stale unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fixtures.acme import audit, factories
from fixtures.acme.categories import Category, Scope
from fixtures.acme.models import Organization, OrganizationMember, Project, Team, User
from hybridcloud.testutils import (
    assert_outbox,
    assume_test_silo_mode_of,
    outbox_runner,
    pending_messages,
    refute_outbox,
)

if TYPE_CHECKING:
    from fixtures.acme.models import User as UserType

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    """Return an organization whose messages were delivered."""
    with outbox_runner():
        return factories.create_organization()


@pytest.fixture
def member(organization: Organization) -> OrganizationMember:
    """Return a member whose messages were delivered."""
    with outbox_runner():
        return factories.create_member(organization, factories.create_user())


@pytest.fixture
def user(member: OrganizationMember) -> UserType:
    """Return the user of the member."""
    with assume_test_silo_mode_of(User):
        return User.objects.get(id=member.user_id)


def test_saving_an_organization_writes_one_message_of_its_shard(organization: Organization) -> None:
    organization.save()
    (message,) = pending_messages()
    assert message.category == Category.ORGANIZATION_UPDATE
    assert message.shard_scope == Scope.ORGANIZATION_SCOPE
    assert message.shard_identifier == organization.id
    assert message.object_identifier == organization.id


def test_a_member_is_in_the_shard_of_its_organization(organization: Organization) -> None:
    member = factories.create_member(organization, factories.create_user())
    assert_outbox(
        count=1,
        category=Category.ORGANIZATION_MEMBER_UPDATE,
        scope=Scope.ORGANIZATION_SCOPE,
        shard=organization.id,
        object_identifier=member.id,
    )


def test_a_user_without_memberships_is_sent_nowhere() -> None:
    factories.create_user()
    refute_outbox()


def test_a_user_is_sent_to_each_cell_with_a_membership(user: UserType) -> None:
    with outbox_runner():
        factories.create_member(factories.create_organization(cell="eu"), user)
    with assume_test_silo_mode_of(User):
        user.save()
    messages = assert_outbox(
        count=2, category=Category.USER_UPDATE, scope=Scope.USER_SCOPE, shard=user.id
    )
    assert {message.cell_name for message in messages} == {"us", "eu"}


def test_a_token_is_sent_to_all_cells() -> None:
    token = factories.create_api_token(factories.create_user())
    messages = assert_outbox(count=2, scope=Scope.API_TOKEN_SCOPE, shard=token.id)
    assert {message.cell_name for message in messages} == {"us", "eu"}


def test_a_login_provider_is_sent_to_the_cell_of_its_organization(
    organization: Organization,
) -> None:
    provider = factories.create_auth_provider(organization)
    (message,) = assert_outbox(category=Category.AUTH_PROVIDER_UPDATE)
    assert (message.cell_name, message.shard_identifier) == ("us", organization.id)
    assert message.object_identifier == provider.id


def test_deleting_a_user_sends_to_all_cells_and_revokes_the_tokens(user: UserType) -> None:
    with outbox_runner():
        token = factories.create_api_token(user)
    with assume_test_silo_mode_of(User):
        User.objects.get(id=user.id).delete()
    assert_outbox(count=2, category=Category.USER_UPDATE, object_identifier=user.id)
    assert_outbox(count=2, category=Category.API_TOKEN_UPDATE, object_identifier=token.id)


def test_deleting_an_organization_writes_for_all_that_goes_with_it(
    organization: Organization, member: OrganizationMember
) -> None:
    with outbox_runner():
        team = factories.create_team(organization)
        project = factories.create_project(organization, team=team)
    organization.delete()
    for category, identifier in (
        (Category.ORGANIZATION_UPDATE, organization.id),
        (Category.ORGANIZATION_MEMBER_UPDATE, member.id),
        (Category.TEAM_UPDATE, team.id),
        (Category.PROJECT_UPDATE, project.id),
    ):
        assert_outbox(category=category, object_identifier=identifier, shard=organization.id)


def test_deleting_a_team_writes_for_the_projects_that_lose_it(organization: Organization) -> None:
    with outbox_runner():
        team = factories.create_team(organization)
        project = factories.create_project(organization, team=team)
    team.delete()
    assert_outbox(category=Category.TEAM_UPDATE)
    assert_outbox(category=Category.PROJECT_UPDATE, object_identifier=project.id)


@pytest.mark.parametrize("change", ["add", "remove", "clear"])
def test_related_managers_write_for_what_they_change(
    organization: Organization, change: str
) -> None:
    with outbox_runner():
        team = factories.create_team(organization)
        project = factories.create_project(organization, team=None if change == "add" else team)
    getattr(team.projects, change)(*([] if change == "clear" else [project]))
    assert_outbox(category=Category.PROJECT_UPDATE, object_identifier=project.id)


def test_bulk_operations_write_for_each_object(organization: Organization) -> None:
    users = [factories.create_user() for _ in range(3)]
    members = OrganizationMember.objects.bulk_create(
        [OrganizationMember(organization=organization, user_id=user.id) for user in users]
    )
    expected = {member.id for member in members}
    for change in (
        lambda: None,
        lambda: OrganizationMember.objects.bulk_update(members, ["role"]),
        lambda: OrganizationMember.objects.filter(organization=organization).update(role="owner"),
        lambda: OrganizationMember.objects.bulk_delete(members),
    ):
        change()
        found = assert_outbox(category=Category.ORGANIZATION_MEMBER_UPDATE)
        assert {message.object_identifier for message in found} == expected
        with outbox_runner():
            pass


def test_a_projects_message_carries_its_slug(organization: Organization) -> None:
    project = factories.create_project(organization, "Rocket")
    project.delete()
    found = assert_outbox(category=Category.PROJECT_UPDATE, payload={"slug": "rocket"})
    assert {message.object_identifier for message in found} == {found[0].object_identifier}


def test_a_teams_message_carries_who_changed_it(organization: Organization) -> None:
    team = Team(organization=organization, name="Core", slug="core")
    team.actor_id = 7
    team.save()
    assert_outbox(count=1, category=Category.TEAM_UPDATE, payload={"actor_id": 7})


def test_each_audit_event_has_an_object_of_its_own(organization: Organization) -> None:
    events = [audit.record_event(organization.id, "login", actor_id=each) for each in range(3)]
    messages = assert_outbox(
        count=3, category=Category.AUDIT_LOG_EVENT, scope=Scope.AUDIT_LOG_SCOPE
    )
    assert len({message.object_identifier for message in messages}) == 3
    assert {message.payload["event_id"] for message in messages} == {str(each) for each in events}


def test_an_organization_without_an_id_from_control_is_refused() -> None:
    from django.db import IntegrityError, transaction

    with (
        assume_test_silo_mode_of(Organization, cell="us"),
        pytest.raises((IntegrityError, ValueError)),
        transaction.atomic(using="cell_us"),
    ):
        Organization.objects.create(name="Homeless", slug="homeless")
    refute_outbox(category=Category.ORGANIZATION_UPDATE)


def test_organizations_of_different_cells_never_share_an_id() -> None:
    made = [factories.create_organization(cell=cell) for cell in ("us", "eu", "us", "eu")]
    assert len({each.id for each in made}) == 4
    with assume_test_silo_mode_of(Project, cell="eu"):
        assert Organization.objects.count() == 2
