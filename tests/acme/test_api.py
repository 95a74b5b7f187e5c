"""The demo's API changes what it says, and every kind of write goes through it; without it the demo proves little."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from fixtures.acme import factories
from fixtures.acme.models import (
    ApiTokenReplica,
    AuditLogEntry,
    AuthProviderReplica,
    Organization,
    OrganizationMapping,
    OrganizationMember,
    OrganizationMemberMapping,
    Project,
    ProjectMapping,
    TeamMapping,
    UserReplica,
)
from hybridcloud.testutils import assume_test_silo_mode_of, outbox_runner, run_cascades

pytestmark = pytest.mark.django_db


class Api:
    """Calls the API and checks the status."""

    def __init__(self) -> None:
        self.client = Client()

    def __call__(
        self, method: str, path: str, body: Any = None, *, expect: int = 200
    ) -> dict[str, Any]:
        with outbox_runner():
            response = self.client.generic(
                method,
                f"/api/{path}",
                "" if body is None else _dump(body),
                content_type="application/json",
            )
        assert response.status_code == expect, response.content
        return response.json()


def _dump(body: Any) -> str:
    import json

    return json.dumps(body)


@pytest.fixture
def api() -> Api:
    """Return a caller of the API."""
    return Api()


@pytest.fixture
def organization(api: Api) -> int:
    """Return an organization made by the API."""
    return api("POST", "organizations/", {"name": "Acme", "slug": "acme", "actor_id": 1})["id"]


def column(model: Any, name: str) -> list[Any]:
    """Return a column of a table, in the cell where undecorated tests run."""
    with assume_test_silo_mode_of(model):
        return list(model.objects.order_by("pk").values_list(name, flat=True))


def test_a_server_says_which_silo_it_is(api: Api) -> None:
    assert api("GET", "health/")["silo"] == "MONOLITH"


def test_an_organization_is_made_renamed_logged_and_deleted(api: Api, organization: int) -> None:
    event = api("PATCH", f"organizations/{organization}/", {"name": "New", "actor_id": 1})
    assert column(OrganizationMapping, "name") == ["New"]
    assert column(AuditLogEntry, "action") == ["organization.create", "organization.rename"]
    assert str(column(AuditLogEntry, "event_id")[1]) == event["event_id"]
    assert api("GET", f"directory/{organization}/")["name"] == "New"
    api("DELETE", f"organizations/{organization}/")
    assert column(OrganizationMapping, "name") == []
    api("GET", f"directory/{organization}/", expect=404)


def test_users_and_members_are_imported_changed_and_removed(api: Api, organization: int) -> None:
    users = api("POST", "users/import/", {"users": [{"username": f"u{n}"} for n in range(3)]})[
        "ids"
    ]
    users.append(api("POST", "users/", {"username": "u3", "email": "u3@acme.example"})["id"])
    path = f"organizations/{organization}/members/"
    members = api("POST", f"{path}import/", {"user_ids": users[:3]})["ids"]
    members.append(api("POST", path, {"user_id": users[3], "role": "owner"})["id"])
    assert column(OrganizationMemberMapping, "role") == ["member"] * 3 + ["owner"]
    assert column(UserReplica, "username") == ["u0", "u1", "u2", "u3"]

    api("PATCH", path, {"role": "admin"})
    api("PATCH", f"members/{members[0]}/", {"role": "owner"})
    assert column(OrganizationMemberMapping, "role") == ["owner"] + ["admin"] * 3
    api("PATCH", f"users/{users[0]}/", {"first_name": "Ada"})
    assert column(UserReplica, "first_name") == ["Ada", "", "", ""]
    api("POST", "users/deactivate/", {"user_ids": users})
    assert column(UserReplica, "is_active") == [False] * 4
    api("POST", "users/reactivate/", {"user_ids": users[1:]})
    assert column(UserReplica, "is_active") == [False, True, True, True]

    api("DELETE", f"members/{members[0]}/")
    api("POST", f"{path}remove/", {"member_ids": [members[1]]})
    api("DELETE", f"users/{users[2]}/")
    with outbox_runner():
        run_cascades()
    assert column(OrganizationMemberMapping, "user_id") == [users[3]]
    assert column(OrganizationMember, "user_id") == column(UserReplica, "user_id") == [users[3]]


def test_tokens_are_issued_and_revoked(api: Api) -> None:
    user = api("POST", "users/", {"username": "ada"})["id"]
    tokens = [api("POST", f"users/{user}/tokens/", {"name": f"t{n}"}) for n in range(3)]
    assert all(token["secret"] for token in tokens)
    assert column(ApiTokenReplica, "name") == ["t0", "t1", "t2"]
    api("DELETE", f"tokens/{tokens[0]['id']}/")
    assert column(ApiTokenReplica, "name") == ["t1", "t2"]
    assert api("DELETE", f"users/{user}/tokens/")["revoked"] == 2
    assert column(ApiTokenReplica, "name") == []


def test_a_login_provider_is_set_up_moved_and_removed(api: Api, organization: int) -> None:
    body = {"organization_id": organization, "provider": "saml", "domain": "a.example"}
    provider = api("POST", "auth-providers/", body)["id"]
    api("PATCH", f"auth-providers/{provider}/", {"domain": "b.example"})
    assert column(AuthProviderReplica, "domain") == ["b.example"]
    api("DELETE", f"auth-providers/{provider}/")
    assert column(AuthProviderReplica, "domain") == []
    api("POST", "auth-providers/", {**body, "organization_id": 10**9}, expect=404)


def test_teams_and_projects_are_made_moved_and_deleted(api: Api, organization: int) -> None:
    path = f"organizations/{organization}/"
    team = api("POST", f"{path}teams/", {"name": "Core", "slug": "core", "actor_id": 1})["id"]
    projects = [
        api("POST", f"{path}projects/", {"name": f"P{n}", "slug": f"p{n}"})["id"] for n in range(3)
    ]
    api("POST", f"teams/{team}/projects/", {"project_ids": projects})
    assert column(ProjectMapping, "team_id") == [team] * 3
    api("DELETE", f"teams/{team}/projects/", {"project_ids": projects[:1]})
    assert column(ProjectMapping, "team_id") == [None, team, team]
    api("DELETE", f"teams/{team}/projects/", {"project_ids": []})
    assert column(ProjectMapping, "team_id") == [None] * 3

    api("POST", f"teams/{team}/projects/", {"project_ids": projects})
    api("PATCH", f"teams/{team}/", {"name": "Kernel", "actor_id": 2})
    assert column(TeamMapping, "last_actor_id") == [2]
    api("DELETE", f"teams/{team}/")
    assert column(TeamMapping, "name") == []
    assert column(ProjectMapping, "team_id") == [None] * 3

    api("PATCH", f"projects/{projects[0]}/", {"name": "Renamed"})
    api("DELETE", f"projects/{projects[1]}/")
    api("POST", f"{path}projects/archive/")
    assert column(ProjectMapping, "archived") == [True, True]
    assert api("DELETE", f"{path}projects/archived/")["deleted"] == 2
    assert column(ProjectMapping, "name") == column(Project, "name") == []


def test_events_are_logged(api: Api, organization: int) -> None:
    event = api("POST", f"organizations/{organization}/events/", {"action": "login"})["event_id"]
    assert event in map(str, column(AuditLogEntry, "event_id"))


@pytest.mark.parametrize(
    ("body", "status"),
    [('{"name": "x"}', 400), ("{", 400), ('{"name": "x", "slug": "x", "typo": 1}', 400)],
)
def test_a_wrong_body_is_refused(body: str, status: int) -> None:
    response = Client().post("/api/organizations/", body, content_type="application/json")
    assert response.status_code == status
    with assume_test_silo_mode_of(Organization):
        assert Organization.objects.count() == 0


def test_a_slug_that_is_taken_is_a_conflict() -> None:
    slug = uuid4().hex
    factories.create_organization(slug=slug)
    body = f'{{"name": "x", "slug": "{slug}"}}'
    response = Client().post("/api/organizations/", body, content_type="application/json")
    assert response.status_code == 409


def test_what_is_not_there_is_not_found(api: Api) -> None:
    api("PATCH", "teams/12345/", {"name": "x"}, expect=404)
    api("PUT", "teams/12345/", {"name": "x"}, expect=405)
