"""Shard and object of a message come from its model, or from a clear error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.acme.categories import Category, Scope
from fixtures.acme.models import ApiToken, Organization, Team, User
from hybridcloud.errors import IdentifierError
from hybridcloud.outbox import OutboxCategory
from hybridcloud.outbox.declare.identifiers import shard_field, shard_path

infer_identifiers = OutboxCategory.infer_identifiers


def test_the_owner_of_a_scope_is_its_own_shard() -> None:
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, Organization(id=7)) == (7, 7)
    assert infer_identifiers(Scope.USER_SCOPE, User(id=3)) == (3, 3)


def test_other_models_name_their_shard_by_the_shard_key() -> None:
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, Team(id=3, organization_id=7)) == (7, 3)


def test_identifiers_that_are_given_win() -> None:
    team = Team(id=3, organization_id=7)
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, team, shard_identifier=9) == (9, 3)
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, team, object_identifier=9) == (7, 9)


def test_a_proxy_of_the_owner_is_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = SimpleNamespace(
        concrete_model=Organization, get_parent_list=list, label_lower="acme.bigorganization"
    )
    proxy: Any = SimpleNamespace(_meta=meta)
    assert shard_path(Scope.ORGANIZATION_SCOPE, proxy) == "pk"


def test_a_model_may_give_a_dotted_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "shard_key", "organization.id", raising=False)
    team = Team(id=3, organization=Organization(id=7))
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, team) == (7, 3)
    assert shard_field(Scope.ORGANIZATION_SCOPE, Team) is None


def test_the_shard_column_of_a_model_is_known() -> None:
    column = shard_field(Scope.ORGANIZATION_SCOPE, Team)
    assert column is Team._meta.get_field("organization")
    assert shard_field(Scope.ORGANIZATION_SCOPE, Organization) is Organization._meta.pk
    assert shard_field(Scope.USER_SCOPE, Team) is None


@pytest.mark.parametrize("text", ["42", "00042", "\N{ARABIC-INDIC DIGIT THREE}", "-1", "4.0", " 7"])
def test_text_of_a_column_of_text_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Organization, "shard_key", "slug", raising=False)
    with pytest.raises(IdentifierError, match=r"'slug' is .*, and an integer is needed"):
        infer_identifiers(Scope.ORGANIZATION_SCOPE, Organization(id=7, slug=text))


@pytest.mark.parametrize("text", ["\N{ARABIC-INDIC DIGIT THREE}", "4.0", " 7", ""])
def test_text_that_is_no_number_is_none_of_an_integer_column_either(text: str) -> None:
    with pytest.raises(IdentifierError, match="an integer is needed"):
        infer_identifiers(Scope.ORGANIZATION_SCOPE, Organization(id=text))


def test_numbers_that_came_as_text_are_taken() -> None:
    team = Team(id=3)
    team.organization_id = "7"  # type: ignore[assignment]
    assert infer_identifiers(Scope.ORGANIZATION_SCOPE, team) == (7, 3)


@pytest.mark.parametrize(
    ("scope", "model", "says"),
    [
        (
            Scope.ORGANIZATION_SCOPE,
            Team(organization_id=7),
            r"No object identifier .*Scope\.ORGANIZATION_SCOPE about acme\.Team: it is not saved",
        ),
        (
            Scope.ORGANIZATION_SCOPE,
            Team(id=3),
            r"No shard identifier .* about acme\.Team: 'organization_id' is None",
        ),
        (
            Scope.USER_SCOPE,
            Team(id=3),
            r"Scope\.USER_SCOPE about acme\.Team: it has no 'user_id' \(shard key 'user_id'\)",
        ),
        (
            Scope.AUDIT_LOG_SCOPE,
            ApiToken(id=3),
            r"Scope\.AUDIT_LOG_SCOPE about acme\.ApiToken: it has no 'organization_id'",
        ),
        (Scope.USER_SCOPE, None, r"No object identifier .* neither a model nor object_identifier="),
    ],
)
def test_what_cannot_be_told_is_an_error_that_names_it(scope: Any, model: Any, says: str) -> None:
    with pytest.raises(IdentifierError, match=says):
        infer_identifiers(scope, model)


def test_a_missing_parent_on_a_dotted_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "shard_key", "organization.id", raising=False)
    with pytest.raises(IdentifierError, match=r"has no 'organization' \(shard key 'organiz"):
        infer_identifiers(Scope.ORGANIZATION_SCOPE, Team(id=3))


def test_a_primary_key_that_is_no_integer_is_refused() -> None:
    team = Team(id="one", organization_id=7)  # type: ignore[misc]
    with pytest.raises(IdentifierError, match=r"primary key is 'one', and an integer is needed"):
        infer_identifiers(Scope.ORGANIZATION_SCOPE, team)


def test_a_message_without_a_model_needs_its_shard() -> None:
    with pytest.raises(IdentifierError, match=r"No shard identifier .*shard_identifier="):
        Category.TEAM_UPDATE.as_cell_outbox(object_identifier=3)
