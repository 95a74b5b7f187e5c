"""Every way to change rows of control's models writes a message for each cell that must hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from fixtures.acme.categories import Category
from fixtures.acme.factories import create_user
from fixtures.acme.models import (
    ApiToken,
    AuthProvider,
    OrganizationMapping,
    OrganizationMemberMapping,
    User,
)
from hybridcloud.errors import IdentifierError
from hybridcloud.outbox import ControlOutbox, outbox_context
from silos import SiloMode, assume_silo
from silos.errors import CellMappingNotFoundError

from .conftest import ALIASES
from .writing import inserts, recorded
from .zoo import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(databases=ALIASES)

USER = Category.USER_UPDATE.value
TOKEN = Category.API_TOKEN_UPDATE.value
PROVIDER = Category.AUTH_PROVIDER_UPDATE.value


@pytest.fixture(autouse=True)
def _in_control() -> Iterator[None]:
    with assume_silo(SiloMode.CONTROL):
        yield


@pytest.fixture(autouse=True)
def _organizations(_in_control: None) -> None:
    for number, cell in ((1, "us"), (2, "eu")):
        OrganizationMapping.objects.create(
            organization_id=number, cell_name=cell, name=str(number), slug=str(number)
        )


def joins(user: User, organization_id: int, cell: str) -> None:
    OrganizationMemberMapping.objects.create(
        organization_id=organization_id,
        organizationmember_id=user.id,
        cell_name=cell,
        user=user,
        role="member",
    )


@pytest.fixture
def user() -> User:
    made = create_user()
    joins(made, 1, "us")
    joins(made, 2, "eu")
    return made


class TestFanOut:
    def test_a_row_goes_to_each_of_its_cells_in_one_insert(self, user: User) -> None:
        with (
            recorded(ControlOutbox) as made,
            CaptureQueriesContext(connections["control"]) as queries,
        ):
            user.save()
        assert made == [(cell, 1, user.id, USER, user.id, None) for cell in ("eu", "us")]
        assert len(inserts(queries)) == 1

    def test_a_row_that_nobody_must_hear_of_has_no_message(self) -> None:
        with recorded(ControlOutbox) as made:
            create_user()
        assert made == []

    def test_a_row_of_an_organization_goes_to_its_cell(self) -> None:
        with recorded(ControlOutbox) as made:
            provider = AuthProvider.objects.create(organization_id=2, provider="saml")
        assert made == [("eu", 0, 2, PROVIDER, provider.id, None)]

    def test_an_organization_without_a_mapping_is_an_error_and_no_row(self) -> None:
        with (
            pytest.raises(CellMappingNotFoundError, match="organization 9"),
            transaction.atomic(using="control"),
        ):
            AuthProvider.objects.create(organization_id=9, provider="saml")
        assert not AuthProvider.objects.exists()

    def test_a_bulk_insert_is_one_insert_for_all_cells_and_rows(self, user: User) -> None:
        tokens = [ApiToken(user=user, name=name, token_hash=name) for name in "abc"]
        with (
            recorded(ControlOutbox) as made,
            CaptureQueriesContext(connections["control"]) as queries,
        ):
            ApiToken.objects.bulk_create(tokens)
        assert made == [
            (cell, 11, each.id, TOKEN, each.id, None) for each in tokens for cell in ("eu", "us")
        ]
        assert len([each for each in inserts(queries) if "controloutbox" in each]) == 1

    def test_the_resolver_is_asked_once_for_each_organization(self) -> None:
        with CaptureQueriesContext(connections["control"]) as queries:
            AuthProvider.objects.bulk_create(
                [
                    AuthProvider(organization_id=number % 2 + 1, provider="saml")
                    for number in range(20)
                ]
            )
        asked = [q for q in queries.captured_queries if "acme_organizationmapping" in q["sql"]]
        assert len(asked) == 2

    def test_queryset_update_locks_and_fans_out(self, user: User) -> None:
        with (
            recorded(ControlOutbox) as made,
            CaptureQueriesContext(connections["control"]) as queries,
        ):
            assert User.objects.filter(pk=user.pk).update(first_name="X") == 1
        assert made == [(cell, 1, user.id, USER, user.id, None) for cell in ("eu", "us")]
        assert len(inserts(queries)) == 1

    def test_a_row_that_moves_is_told_of_in_both_cells(self) -> None:
        provider = AuthProvider.objects.create(organization_id=1, provider="saml")
        with recorded(ControlOutbox) as made:
            AuthProvider.objects.update(organization_id=2)
        assert set(made) == {
            ("us", 0, 1, PROVIDER, provider.id, None),
            ("eu", 0, 2, PROVIDER, provider.id, None),
        }


class TestDeletion:
    def test_a_deletion_goes_to_every_cell(self) -> None:
        user = create_user()
        pk = user.pk
        with recorded(ControlOutbox) as made:
            user.delete()
        assert made == [(cell, 1, pk, USER, pk, None) for cell in ("eu", "us")]

    def test_a_cascade_goes_to_every_cell_in_one_insert(self, user: User) -> None:
        token = ApiToken.objects.create(user=user, name="a", token_hash="a")
        with (
            recorded(ControlOutbox) as made,
            CaptureQueriesContext(connections["control"]) as queries,
        ):
            User.objects.filter(pk=user.pk).delete()
        assert {(each[0], each[3], each[4]) for each in made} == {
            (cell, category, pk)
            for cell in ("eu", "us")
            for category, pk in ((USER, user.pk), (TOKEN, token.pk))
        }
        assert len(inserts(queries)) == 1

    def test_the_cells_of_a_deletion_may_be_overridden(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(User, "outbox_cell_names_for_deletion", lambda _: ["us"])
        user = create_user()
        with recorded(ControlOutbox) as made:
            user.delete()
        assert [each[0] for each in made] == ["us"]


@pytest.mark.usefixtures("zoo")
class TestDefaultCells:
    def test_the_cells_of_its_organization_come_before_those_of_its_user(self, user: User) -> None:
        assert Keeper(organization_id=1, user_id=user.id).outbox_cell_names() == {"us"}
        assert Keeper(user_id=user.id).outbox_cell_names() == {"us", "eu"}

    def test_neither_is_an_error_that_says_what_to_override(self) -> None:
        with pytest.raises(
            IdentifierError,
            match=r"No target cells for zoo\.Keeper .*Override outbox_cell_names\(\)",
        ):
            Keeper().outbox_cell_names()

    def test_bulk_rows_of_users_and_organizations_are_told_apart(self, user: User) -> None:
        rows = [
            Keeper(organization_id=1),
            Keeper(organization_id=2, user_id=user.id),
            Keeper(organization_id=1),
        ]
        with recorded(ControlOutbox) as made:
            Keeper.objects.bulk_create(rows)
        assert [(each[0], each[2]) for each in made] == [("us", 1), ("eu", 2), ("us", 1)]

    def test_update_of_an_instance_sets_what_each_save_sets(self) -> None:
        keeper = Keeper.objects.create(organization_id=1)
        before = keeper.changed
        with recorded(ControlOutbox) as made:
            keeper.update(name="X")
        assert keeper.changed > before
        keeper.refresh_from_db()
        assert (keeper.name, keeper.changed > before) == ("X", True)
        assert len(made) == 1


class TestContext:
    def test_saves_of_several_models_are_one_insert(self, user: User) -> None:
        with (
            recorded(ControlOutbox) as made,
            CaptureQueriesContext(connections["control"]) as queries,
            outbox_context(transaction.atomic(using="control")),
        ):
            user.save()
            AuthProvider.objects.create(organization_id=1, provider="saml")
            user.save()
        assert [(each[0], each[3]) for each in made] == [
            ("us", PROVIDER),
            ("eu", USER),
            ("us", USER),
        ]
        assert len([each for each in inserts(queries) if "controloutbox" in each]) == 1

    def test_the_password_that_a_login_upgrades_is_a_change(self, user: User) -> None:
        with recorded(ControlOutbox) as made:
            user.set_password("x")
            user.save(update_fields=["password"])
        assert len(made) == 2

    def test_users_made_by_djangos_manager_are_told_of(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(User, "outbox_cell_names", lambda _: ["us"])
        with recorded(ControlOutbox) as made:
            user = User.objects.create_user("someone")
        assert made == [("us", 1, user.id, USER, user.id, None)]
