"""Bulk operations write one INSERT of messages, and refuse what cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, models, transaction
from django.test.utils import CaptureQueriesContext

from fixtures.acme.categories import Category
from fixtures.acme.factories import create_member, create_project, create_user
from fixtures.acme.models import Organization, OrganizationMember, Project
from hybridcloud.errors import IdentifierError, OutboxError
from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US
from .writing import inserts, recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(databases=ALIASES)

ORG = Category.ORGANIZATION_UPDATE.value
MEMBER = Category.ORGANIZATION_MEMBER_UPDATE.value
PROJECT = Category.PROJECT_UPDATE.value


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


def members(org: Organization, count: int) -> list[OrganizationMember]:
    return [OrganizationMember(organization=org, user_id=number) for number in range(count)]


class TestCreate:
    def test_rows_and_messages_are_one_insert_each(self, org: Organization) -> None:
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            rows = OrganizationMember.objects.bulk_create(members(org, 50))
        assert len([each for each in inserts(queries) if "celloutbox" in each]) == 1
        assert made == [(0, org.id, MEMBER, each.id, None) for each in rows]

    def test_payloads_are_each_rows_own(self, org: Organization) -> None:
        with recorded() as made:
            rows = Project.objects.bulk_create(
                [Project(organization=org, name=slug, slug=slug) for slug in "ab"]
            )
        assert made == [(0, org.id, PROJECT, each.id, {"slug": each.slug}) for each in rows]

    def test_nothing_is_nothing(self) -> None:
        with recorded() as made:
            assert OrganizationMember.objects.bulk_create([]) == []
        assert made == []

    def test_ids_that_are_given_are_taken(self) -> None:
        with recorded() as made:
            Organization.objects.bulk_create([Organization(id=7001, name="A", slug="a7001")])
        assert made == [(0, 7001, ORG, 7001, None)]

    def test_ids_that_come_from_no_sequence_must_be_given(self) -> None:
        with pytest.raises(OutboxError, match=r"No id for bulk_create of acme\.Organization"):
            Organization.objects.bulk_create([Organization(name="A", slug="a")])

    def test_ids_that_a_default_makes_are_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        numbers = iter((7001, 7002))
        monkeypatch.setattr(
            models.BigIntegerField, "get_pk_value_on_save", lambda *_: next(numbers)
        )
        with recorded() as made:
            Organization.objects.bulk_create(
                [Organization(name=slug, slug=slug) for slug in ("a7001", "a7002")]
            )
        assert [each[3] for each in made] == [7001, 7002]

    def test_ignoring_conflicts_is_refused(self, org: Organization) -> None:
        with pytest.raises(OutboxError, match=r"ignore_conflicts=True\) of acme\.Organization"):
            OrganizationMember.objects.bulk_create(members(org, 1), ignore_conflicts=True)

    def test_an_upsert_tells_of_new_and_of_changed_rows(self, org: Organization) -> None:
        there = OrganizationMember.objects.create(organization=org, user_id=0)
        with recorded() as made:
            OrganizationMember.objects.bulk_create(
                members(org, 2),
                update_conflicts=True,
                update_fields=["role"],
                unique_fields=["organization", "user_id"],
            )
        new = OrganizationMember.objects.get(user_id=1)
        assert made == [(0, org.id, MEMBER, each.id, None) for each in (there, new)]

    def test_an_upsert_with_given_ids_names_the_rows_that_there_are(self) -> None:
        Organization.objects.create(id=7001, name="A", slug="a")
        with recorded() as made:
            Organization.objects.bulk_create(
                [
                    Organization(id=7002, name="B", slug="a"),
                    Organization(id=7003, name="C", slug="c"),
                ],
                update_conflicts=True,
                update_fields=["name"],
                unique_fields=["slug"],
            )
        assert made == [(0, 7001, ORG, 7001, None), (0, 7003, ORG, 7003, None)]
        assert Organization.objects.get(pk=7001).name == "B"

    def test_an_upserts_payload_is_what_the_row_holds(self, org: Organization) -> None:
        project = create_project(org, "kept")
        with recorded() as made:
            Project.objects.bulk_create(
                [Project(id=project.id, organization=org, name="X", slug="lost")],
                update_conflicts=True,
                update_fields=["name"],
                unique_fields=["id"],
            )
        assert made == [(0, org.id, PROJECT, project.id, {"slug": "kept"})]

    def test_a_shard_that_cannot_be_told_undoes_it(self, org: Organization) -> None:
        rows = [*members(org, 1), OrganizationMember(user_id=9, organization_id=None)]
        with pytest.raises(Exception, match="organization"), transaction.atomic(using=US):
            OrganizationMember.objects.bulk_create(rows)
        assert not OrganizationMember.objects.exists()

    def test_inside_a_block_it_is_buffered_like_all_else(self, org: Organization) -> None:
        with (
            CaptureQueriesContext(connections[US]) as queries,
            outbox_context(transaction.atomic(using=US)),
        ):
            OrganizationMember.objects.bulk_create(members(org, 5))
            org.save()
        assert len([each for each in inserts(queries) if "celloutbox" in each]) == 1


class TestUpdate:
    def test_bulk_update_tells_of_each_row(self, org: Organization) -> None:
        rows = OrganizationMember.objects.bulk_create(members(org, 5))
        for each in rows:
            each.role = "owner"
        with recorded() as made:
            assert OrganizationMember.objects.bulk_update(rows, ["role"], batch_size=2) == 5
        assert made == [(0, org.id, MEMBER, each.id, None) for each in rows]
        assert set(OrganizationMember.objects.values_list("role", flat=True)) == {"owner"}

    def test_bulk_update_with_a_payload_is_one_insert(self, org: Organization) -> None:
        rows = [create_project(org) for _ in range(4)]
        for each in rows:
            each.slug = f"new-{each.slug}"
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            Project.objects.bulk_update(rows, ["slug"], batch_size=2)
        assert made == [(0, org.id, PROJECT, each.id, {"slug": each.slug}) for each in rows]
        assert len(inserts(queries)) == 1

    def test_a_row_that_is_gone_is_not_told_of(self, org: Organization) -> None:
        rows = OrganizationMember.objects.bulk_create(members(org, 2))
        OrganizationMember.objects.filter(pk=rows[0].pk).delete()
        with recorded() as made:
            assert OrganizationMember.objects.bulk_update(rows, ["role"]) == 1
        assert [each[3] for each in made] == [rows[1].pk]


class TestDelete:
    def test_bulk_delete_tells_of_each_row_and_of_what_goes_with_it(
        self, org: Organization
    ) -> None:
        member = create_member(org, create_user())
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            deleted, counts = Organization.objects.bulk_delete([org])
        assert (deleted, counts["acme.Organization"]) == (2, 1)
        assert sorted(made) == sorted(
            [(0, org.id, ORG, org.id, None), (0, org.id, MEMBER, member.id, None)]
        )
        assert len(inserts(queries)) == 1

    def test_nothing_is_nothing(self) -> None:
        assert Organization.objects.bulk_delete([]) == (0, {})


def test_a_missing_shard_is_named_by_its_model(org: Organization) -> None:
    member: Any = OrganizationMember(id=5, user_id=1)
    with pytest.raises(
        IdentifierError, match=r"acme\.OrganizationMember: 'organization_id' is None"
    ):
        member.outbox_for_update()
