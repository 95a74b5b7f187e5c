"""What a change costs in statements: a slow machine can't hide a regression, a fast one can't excuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from fixtures.acme.models import Organization, OrganizationMember, Project
from hybridcloud.outbox import outbox_context

from .conftest import ALIASES
from .engine import US
from .writing import objects

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=ALIASES),
    pytest.mark.usefixtures("unflushed_us"),
]


def new_project(org: Organization, number: int = 1) -> Project:
    return Project.objects.create(organization=org, name="A", slug=str(number))


def counted() -> AbstractContextManager[CaptureQueriesContext]:
    return CaptureQueriesContext(connections[US])


def kinds(queries: CaptureQueriesContext) -> list[str]:
    """Return verb and table of each statement."""
    found = []
    for each in queries.captured_queries:
        words = each["sql"].replace('"', "").split()
        verb = words[0].rstrip(";")
        table = {"INSERT": 2, "UPDATE": 1, "WITH": 4}.get(verb)
        found.append(verb if table is None else f"{verb} {words[table]}")
    return found


def test_a_save_costs_one_insert_beside_its_own_and_a_transaction(org: Organization) -> None:
    with counted() as queries:
        new_project(org)
    assert kinds(queries) == [
        "BEGIN",
        "INSERT acme_project",
        "INSERT hybridcloud_celloutbox",
        "COMMIT",
    ]


def test_ten_saves_in_a_block_cost_one_insert(org: Organization) -> None:
    with counted() as queries, outbox_context(transaction.atomic(using=US)):
        for number in range(10):
            new_project(org, number)
    assert kinds(queries) == [
        "BEGIN",
        *["INSERT acme_project"] * 10,
        "INSERT hybridcloud_celloutbox",
        "COMMIT",
    ]


def test_a_thousand_rows_in_bulk_cost_one_insert(org: Organization) -> None:
    before = len(objects())
    with counted() as queries:
        Project.objects.bulk_create(
            [Project(organization=org, name=str(each), slug=str(each)) for each in range(1000)]
        )
    assert kinds(queries) == [
        "BEGIN",
        "INSERT acme_project",
        "INSERT hybridcloud_celloutbox",
        "COMMIT",
    ]
    assert len(objects()) == before + 1000


def test_an_update_in_bulk_costs_nothing_more_than_itself(org: Organization) -> None:
    OrganizationMember.objects.create(organization=org, user_id=1)
    with counted() as queries:
        OrganizationMember.objects.update(role="owner")
    assert kinds(queries) == ["WITH acme_organizationmember"]


def test_an_update_with_a_payload_locks_changes_reads_and_tells(org: Organization) -> None:
    new_project(org)
    with counted() as queries:
        Project.objects.update(name="B")
    assert kinds(queries) == [
        "BEGIN",
        "SELECT",
        "UPDATE acme_project",
        "SELECT",
        "INSERT hybridcloud_celloutbox",
        "COMMIT",
    ]


def test_an_update_of_an_instance_is_one_statement(org: Organization) -> None:
    member = OrganizationMember.objects.create(organization=org, user_id=1)
    with counted() as queries:
        member.update(role="owner")
    assert kinds(queries) == ["WITH acme_organizationmember"]


def test_a_deletion_costs_one_insert_for_all_that_goes(org: Organization) -> None:
    for number in range(5):
        OrganizationMember.objects.create(organization=org, user_id=number)
    with counted() as queries:
        org.delete()
    assert len([each for each in kinds(queries) if "outbox" in each]) == 1
