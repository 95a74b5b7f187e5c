"""One batch: whatever the table looks like and whoever writes to it, no row is left out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from fixtures.acme.categories import Category
from fixtures.acme.models import (
    ApiToken,
    Organization,
    OrganizationMember,
    Project,
    UserReplica,
)
from hybridcloud import hooks
from hybridcloud.backfill import batch as batches
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill import process_outbox_backfill_batch
from hybridcloud.backfill.run import walk_of
from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox import CellOutbox
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .filling import (
    CONTROL,
    ORGANIZATIONS,
    US,
    execute,
    fill_members,
    fill_organizations,
    fill_projects,
    fill_tokens,
    state,
    walk,
    written,
    written_in_control,
)

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("ids", "size"),
    [
        ([1], 1),
        ([1], 100),
        ([1, 2, 3, 4], 2),
        ([1, 2, 3, 4, 5], 2),
        ([3, 70, 5000, 2**40, 2**63 - 1], 2),
        ([-(2**62), -50, -3, -2, -1, 0, 1], 1),
        ([-7, -6], 1),
        ([-1], 1),
        ([0], 1),
    ],
)
def test_each_row_is_walked_once_and_in_order(ids: list[int], size: int) -> None:
    fill_organizations(ids)
    walked = walk(size)
    assert written() == ids
    assert sum(batch.count for batch in walked) == len(ids)
    assert all(batch.count <= size for batch in walked)
    assert state() == (0, 2)


def test_an_empty_table_is_done_at_once() -> None:
    (batch,) = walk()
    assert (batch.count, batch.messages, batch.has_more) == (0, 0, False)
    assert state() == (0, 2)
    assert written() == []


def test_a_walk_that_has_passed_minus_one_does_not_begin_again() -> None:
    fill_organizations([-2, -1, 3])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    # The position is the 0 that an unstarted walk has, too.
    assert state() == (0, 1)
    walk()
    assert written() == [-2, -1, 3]


def test_a_batch_tells_what_it_did() -> None:
    fill_organizations([4, 8, 15])
    batch = process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    assert batch is not None
    assert (batch.low, batch.up, batch.version) == (4, 8, 1)
    assert (batch.count, batch.messages, batch.has_more) == (2, 2, True)


def test_rows_deleted_while_it_walks_are_passed_over() -> None:
    fill_organizations([1, 2, 3, 4, 5])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    execute("DELETE FROM acme_organization WHERE id IN (3, 5)")
    walk()
    assert written() == [1, 2, 4]
    assert state() == (0, 2)


def test_rows_that_are_all_deleted_while_it_walks_end_it() -> None:
    fill_organizations([1, 2, 3, 4, 5])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    execute("DELETE FROM acme_organization")
    walk()
    assert state() == (0, 2)


def test_rows_saved_while_it_walks_have_their_own_message_and_do_not_make_it_longer() -> None:
    fill_organizations([10, 20])
    process_outbox_backfill_batch(Organization, 1, force_synchronous=True)
    with assume_silo(SiloMode.CELL, cell="us"):
        Organization.objects.create(id=5, name="behind", slug="behind")
        Organization.objects.create(id=30, name="ahead", slug="ahead")
    walk()
    assert sorted(written()) == [5, 10, 20, 30]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_walks_nothing_is_refused_and_marks_nothing(size: int) -> None:
    fill_organizations([1])
    with pytest.raises(ValueError, match=f"^Batch size {size} of a backfill"):
        process_outbox_backfill_batch(Organization, size, force_synchronous=True)
    walk()
    assert written() == [1]


def test_a_model_that_produces_nothing_has_nothing_to_do() -> None:
    assert process_outbox_backfill_batch(UserReplica, 10, force_synchronous=True) is None


def test_a_key_that_is_no_integer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Organization._meta, "pk", Organization._meta.get_field("slug"))
    with pytest.raises(ConfigurationError, match=r"^No integer primary key"):
        process_outbox_backfill_batch(Organization, 10, force_synchronous=True)


def test_the_shard_is_the_rows_own() -> None:
    fill_organizations([7])
    fill_members([1, 2], organization=7)
    walk(model=OrganizationMember)
    rows = CellOutbox.objects.using(US).filter(category=Category.ORGANIZATION_MEMBER_UPDATE)
    assert set(rows.values_list("shard_scope", "shard_identifier")) == {(0, 7)}
    assert set(rows.values_list("payload", flat=True)) == {None}


def test_messages_are_as_the_model_itself_would_write_them() -> None:
    fill_organizations([7])
    fill_projects([1], organization=7)
    walk(model=Organization)
    walk(model=Project)
    with assume_silo(SiloMode.CELL, cell="us"):
        Organization.objects.get(id=7).save()
        Project.objects.get(id=1).save()
    columns = ("shard_scope", "shard_identifier", "object_identifier", "payload", "headers")
    for category in (Category.ORGANIZATION_UPDATE, Category.PROJECT_UPDATE):
        walked, saved = (
            CellOutbox.objects.using(US).filter(category=category).order_by("id").values(*columns)
        )
        assert walked == saved


def test_payloads_are_made_in_python() -> None:
    fill_organizations([7])
    fill_projects([3, 1, 2], organization=7)
    assert not walk_of(Project).by_sql
    walk(model=Project)
    rows = CellOutbox.objects.using(US).filter(category=Category.PROJECT_UPDATE).order_by("id")
    assert list(rows.values_list("object_identifier", "payload")) == [
        (1, {"slug": "p1"}),
        (2, {"slug": "p2"}),
        (3, {"slug": "p3"}),
    ]
    assert state("acme_project") == (0, 2)


def test_a_row_of_control_goes_to_each_of_its_cells() -> None:
    fill_tokens([1, 2, 3])
    walked = walk(model=ApiToken)
    assert written_in_control(Category.API_TOKEN_UPDATE) == [
        (number, cell) for number in (1, 2, 3) for cell in ("eu", "us")
    ]
    assert [(batch.count, batch.messages) for batch in walked] == [(2, 4), (1, 2)]


def test_a_control_models_walk_can_be_limited_to_cells() -> None:
    fill_tokens([1, 2])
    with override_options({"outbox_replication.acme_apitoken.backfill.target_cells": ["eu"]}):
        walk(model=ApiToken)
    assert written_in_control(Category.API_TOKEN_UPDATE) == [(1, "eu"), (2, "eu")]


def _statements(alias: str, act: Any) -> list[str]:
    with CaptureQueriesContext(connections[alias]) as captured:
        act()
    return [each["sql"] for each in captured if not re.match("SAVEPOINT|RELEASE", each["sql"])]


def test_a_batch_by_sql_is_one_round_trip() -> None:
    fill_organizations(range(1, 50))
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    walk, cursor = walk_of(Organization), cursors.read(US, ORGANIZATIONS)
    found = _statements(US, lambda: walk.step(cursor, target=1, most=20))
    assert len(found) == 1
    # Where the position must be read first, as by a caller who has nothing but the model: two.
    found = _statements(US, lambda: process_outbox_backfill_batch(Organization, 20, True))
    assert len(found) == 2


def test_a_batch_reads_its_rows_from_the_primary_key_however_many_there_are() -> None:
    fill_organizations(range(1, 20_001))
    execute("ANALYZE acme_organization")
    process_outbox_backfill_batch(Organization, 1, force_synchronous=True)
    walk, cursor = walk_of(Organization), cursors.read(US, ORGANIZATIONS)
    (statement,) = _statements(US, lambda: walk.step(cursor, target=1, most=1000))
    plan = "\n".join(row[0] for row in execute("EXPLAIN " + statement.replace("%", "%%")))
    assert re.search(
        r"Index (Only )?Scan using acme_organization_pkey on acme_organization t", plan
    )
    assert "Seq Scan on acme_organization" not in plan


@pytest.mark.parametrize("size", [2, 40])
def test_a_batch_by_python_has_one_insert_and_as_many_statements_whatever_its_size(
    size: int,
) -> None:
    fill_organizations([7])
    fill_projects(range(1, 60), organization=7)
    process_outbox_backfill_batch(Project, 1, force_synchronous=True)
    walk, cursor = walk_of(Project), cursors.read(US, "acme_project")
    found = _statements(US, lambda: walk.step(cursor, target=1, most=size))
    # In a test case there is one more, which gives the transaction back its own lock timeout.
    assert len(found) == 6
    assert len([each for each in found if each.startswith("INSERT")]) == 1


def test_nothing_is_flushed_whatever_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Organization, "default_flush", True)
    monkeypatch.setattr(Project, "default_flush", True)
    flushed: list[Any] = []
    monkeypatch.setattr(
        "hybridcloud.outbox.deliver.flush.flush_written", lambda *a, **k: flushed.append(a)
    )
    fill_organizations([7])
    fill_projects([1], organization=7)
    with assume_silo(SiloMode.CELL, cell="us"):
        walk(model=Organization)
        walk(model=Project)
        for connection in connections.all():
            for _, hook, *_rest in connection.run_on_commit:
                hook()
    assert flushed == []


def test_metrics_hear_of_what_was_written() -> None:
    class Watch(hooks.Hooks):
        def __init__(self) -> None:
            self.facts: list[hooks.Saved] = []

        def saved(self, fact: hooks.Saved) -> None:
            self.facts.append(fact)

    fill_organizations([1, 2, 3])
    with hooks.installed(Watch()) as watch:
        walk(5)
        for _, hook, *_rest in connections[US].run_on_commit:
            hook()
    assert [fact.counts for fact in watch.facts] == [{Category.ORGANIZATION_UPDATE: 3}]


def test_a_wish_for_more_than_a_batch_may_have_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_BY_SQL", 3)
    fill_organizations(range(1, 8))
    assert [batch.count for batch in walk(1000)] == [3, 3, 1]


def test_an_estimate_of_the_rows_is_kept_for_progress() -> None:
    fill_organizations(range(1, 8))
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    found = cursors.read(US, ORGANIZATIONS)
    assert (found.rows_expected, found.row_count, found.message_count, found.upto) == (7, 2, 2, 7)


def test_other_cells_have_positions_of_their_own() -> None:
    fill_organizations([1, 2, 3])
    fill_organizations([1, 2], alias="cell_eu")
    walk()
    assert written(alias="cell_eu") == []
    with assume_silo(SiloMode.CELL, cell="eu"):
        walk()
    assert written(alias="cell_eu") == [1, 2]
    assert written() == [1, 2, 3]


def test_control_rows_are_counted_in_controls_own_database() -> None:
    fill_tokens([1])
    walk(model=ApiToken)
    assert cursors.read_all(US, ["acme_apitoken"]) == {}
    assert cursors.read(CONTROL, "acme_apitoken").version == 2
