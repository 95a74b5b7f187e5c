"""A queryset's update() changes rows and writes their messages as one, also while others write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import FieldError
from django.db import connections, transaction
from django.db.models import Count, F, Value
from django.db.models.functions import Concat
from django.test.utils import CaptureQueriesContext

from fixtures.acme.factories import create_member, create_organization, create_project, create_team
from fixtures.acme.models import Organization, OrganizationMember, Project, Team, User
from hybridcloud.errors import IdentifierError, OutboxError
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.deliver import flush as flushing
from hybridcloud.outbox.store.key import ShardKey
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US, Worker
from .writing import last_id, objects, recorded, rolled_back
from .zoo import Animal, Bird, Label, Pen, Visit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridcloud.outbox.deliver.flush import Written

pytestmark = pytest.mark.django_db(databases=ALIASES)

LOCK = re.compile(r'SELECT "acme_project"."id" .* ORDER BY (1|"acme_project"."id") ASC FOR UPDATE$')


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


@pytest.fixture
def other() -> Organization:
    return create_organization(cell="us")


def new_member(org: Organization, number: int = 1, **fields: Any) -> OrganizationMember:
    return create_member(org, User(id=number), **fields)


def statements(queries: CaptureQueriesContext) -> list[str]:
    return [
        each["sql"]
        for each in queries.captured_queries
        if not each["sql"].startswith(("SAVEPOINT", "RELEASE"))
    ]


class TestOneStatement:
    def test_change_and_messages_are_one_statement(self, org: Organization) -> None:
        members = [new_member(org, number) for number in range(3)]
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            assert OrganizationMember.objects.filter(organization=org).update(role="X") == 3
        (statement,) = statements(queries)
        assert statement.startswith("WITH hc_row AS (UPDATE")
        assert [each[3] for each in made] == [each.id for each in members]

    def test_joins_expressions_annotations_and_orders_pass(
        self, org: Organization, other: Organization
    ) -> None:
        member = new_member(org, 1)
        new_member(other, 2)
        found = (
            OrganizationMember.objects.filter(organization__slug=org.slug)
            .annotate(twice=Concat(F("role"), Value("%s"), F("role")))
            .order_by("-organization__name")
        )
        with recorded() as made, CaptureQueriesContext(connections[US]) as queries:
            assert found.update(role=F("twice")) == 1
        assert len(statements(queries)) == 1
        assert [each[3] for each in made] == [member.id]
        member.refresh_from_db()
        assert member.role == "member%smember"

    def test_a_subquery_of_the_same_table_passes(self, org: Organization) -> None:
        member = new_member(org)
        found = OrganizationMember.objects.filter(
            pk__in=OrganizationMember.objects.filter(role="member").values("pk")
        )
        with recorded() as made:
            assert found.update(role="X") == 1
        assert [each[3] for each in made] == [member.id]

    def test_the_owner_of_a_scope_is_its_own_shard(self, org: Organization) -> None:
        with recorded() as made:
            Organization.objects.update(name="X")
        assert [(each[1], each[3]) for each in made] == [(org.id, org.id)]

    def test_mistakes_are_djangos(self, org: Organization) -> None:
        new_member(org)
        rows = OrganizationMember.objects.all()
        with pytest.raises(TypeError, match="slice"):
            rows[:1].update(role="X")
        with pytest.raises(TypeError, match="distinct"):
            rows.distinct("role").update(role="X")
        with pytest.raises(Exception, match="union"):
            rows.union(rows).update(role="X")
        with pytest.raises(FieldError, match="nothing"):
            rows.filter(nothing=1).update(role="X")
        assert rows.update() == 0
        assert rows.update(role="X") == 1

    def test_no_wrapper_is_left_on_the_connection(self, org: Organization) -> None:
        new_member(org)
        before = list(connections[US].execute_wrappers)
        OrganizationMember.objects.filter(pk__in=[]).update(user_id=5)
        OrganizationMember.objects.update(user_id=5)
        with pytest.raises(FieldError):
            OrganizationMember.objects.update(role=F("nothing"))
        assert [each for each in connections[US].execute_wrappers if "rewrite" in repr(each)] == []
        assert before[0] is connections[US].execute_wrappers[0]

    def test_the_result_cache_is_dropped(self, org: Organization) -> None:
        new_member(org)
        rows = OrganizationMember.objects.all()
        assert [each.role for each in rows] == ["member"]
        rows.update(role="X")
        assert [each.role for each in rows] == ["X"]

    def test_the_primary_key_is_left_alone(self, org: Organization) -> None:
        for name in ("id", "pk"):
            with pytest.raises(
                OutboxError, match=r"Primary key in update\(\) of acme\.Organization"
            ):
                Organization.objects.update(**{name: 5})

    def test_a_rolled_back_update_leaves_no_message(self, org: Organization) -> None:
        new_member(org)
        outer = outbox_context(transaction.atomic(using=US))
        with recorded() as made, outer, rolled_back(transaction.atomic(using=US)):
            OrganizationMember.objects.update(role="X")
        assert made == []


class TestLocked:
    def test_rows_are_locked_in_the_order_of_their_ids_then_changed(
        self, org: Organization
    ) -> None:
        create_project(org)
        with CaptureQueriesContext(connections[US]) as queries:
            Project.objects.filter(archived=False).order_by("-name").update(name="X")
        found = statements(queries)
        assert LOCK.match(found[0])
        assert [each.split(" ", 1)[0] for each in found] == ["SELECT", "UPDATE", "SELECT", "INSERT"]

    @pytest.mark.parametrize(
        "narrow",
        [
            lambda rows: rows.filter(organization__name__contains="rgan"),
            lambda rows: rows.annotate(n=Count("organization__members")).filter(n=0),
            lambda rows: rows.distinct(),
            lambda rows: rows.select_related("team", "organization"),
            lambda rows: rows.filter(team__isnull=True),
            lambda rows: rows.exclude(team__name="X"),
            lambda rows: rows.annotate(m=F("name")).order_by("m"),
            lambda rows: rows.only("name"),
            lambda rows: rows.values("name"),
        ],
    )
    def test_any_query_can_be_locked(self, org: Organization, narrow: Any) -> None:
        project = create_project(org)
        with recorded() as made:
            assert narrow(Project.objects.all()).update(name="Y") == 1
        assert [each[3] for each in made] == [project.id]

    def test_annotations_may_be_set(self, org: Organization) -> None:
        project = create_project(org)
        Project.objects.annotate(longer=Concat(F("name"), Value("!"))).update(name=F("longer"))
        assert Project.objects.get().name == f"{project.name}!"

    def test_many_rows_go_in_pieces(
        self, org: Organization, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hybridcloud.outbox.write.bulk_update._MOST_PKS", 2)
        projects = [create_project(org) for _ in range(5)]
        with recorded() as made:
            assert Project.objects.update(name="X") == 5
        assert [each[3] for each in made] == [each.id for each in projects]


class TestMoving:
    """An update of the shard key writes for the old and for the new shard."""

    def test_a_shard_column(self, org: Organization, other: Organization) -> None:
        member = new_member(org)
        for name, value in (("organization", other), ("organization_id", org.id)):
            with recorded() as made:
                OrganizationMember.objects.update(**{name: value})
            assert {each[1] for each in made} == {org.id, other.id}
            assert {each[3] for each in made} == {member.id}

    def test_a_row_that_stays_is_told_of_once(self, org: Organization) -> None:
        new_member(org)
        with recorded() as made:
            OrganizationMember.objects.update(organization=org)
        assert len(made) == 1

    def test_the_old_shard_gets_the_new_payload(
        self, org: Organization, other: Organization
    ) -> None:
        create_project(org)
        with recorded() as made:
            Project.objects.update(organization=other, slug="moved")
        assert {(each[1], each[-1]["slug"]) for each in made} == {
            (org.id, "moved"),
            (other.id, "moved"),
        }

    def test_a_model_that_makes_its_message_itself(
        self, org: Organization, other: Organization
    ) -> None:
        create_team(org)
        with recorded() as made:
            Team.objects.update(organization=other)
        assert {each[1] for each in made} == {org.id, other.id}

    def test_a_related_manager_moves_as_well(self, org: Organization, other: Organization) -> None:
        member = new_member(org)
        with recorded() as made:
            other.members.add(member)
        assert {each[1] for each in made} == {org.id, other.id}

    def test_bulk_update_moves_as_well(self, org: Organization, other: Organization) -> None:
        member = new_member(org)
        member.organization = other
        with recorded() as made:
            OrganizationMember.objects.bulk_update([member], ["organization"])
        assert {each[1] for each in made} == {org.id, other.id}

    @pytest.mark.usefixtures("zoo")
    def test_the_first_step_of_a_path(self) -> None:
        pens = [Pen.objects.create() for _ in range(2)]
        animals = [Animal.objects.create(pen=pen) for pen in pens]
        Label.objects.create(animal=animals[0])
        with recorded() as made:
            Label.objects.update(animal=animals[1])
        assert {each[1] for each in made} == {pen.id for pen in pens}


@pytest.mark.usefixtures("zoo")
class TestShapes:
    def test_children_of_multi_table_inheritance_are_locked(self) -> None:
        bird = Bird.objects.create(pen=Pen.objects.create())
        for fields in ({"wings": 3}, {"name": "X"}, {"name": "Y", "wings": 4}):
            with recorded() as made:
                assert Bird.objects.update(**fields) == 1
            assert [(each[1], each[2], each[3]) for each in made] == [(bird.pen_id, 9101, bird.id)]
        bird.refresh_from_db()
        assert (bird.name, bird.wings) == ("Y", 4)

    def test_a_shard_that_may_be_missing_is_an_error_where_it_is(self) -> None:
        visit = Visit.objects.create(pen=Pen.objects.create())
        with recorded() as made:
            Visit.objects.update(count=1)
        assert [each[3] for each in made] == [visit.id]
        with (
            pytest.raises(IdentifierError, match=r"zoo\.Visit: 'pen_id' is None"),
            transaction.atomic(using=US),
        ):
            Visit.objects.update(pen=None)
        assert Visit.objects.get().pen_id is not None


@pytest.mark.django_db(transaction=True, databases=ALIASES)
class TestWhileOthersWrite:
    def test_a_row_that_comes_to_match_is_not_changed_without_a_message(self) -> None:
        org = create_organization(cell="us")
        with outbox_context(flush=False):
            first = create_project(org, archived=True)
            late = create_project(org, archived=False)

        def let_it_match() -> None:
            with outbox_context(flush=False):
                Project.objects.filter(pk=late.pk).update(archived=True)

        assert _changed_while(let_it_match, first, late) == {first.pk}

    def test_a_row_that_is_changed_meanwhile_is_waited_for_and_looked_at_again(self) -> None:
        org = create_organization(cell="us")
        with outbox_context(flush=False):
            first = create_project(org, archived=True)
            gone = create_project(org, archived=True)
        with transaction.atomic(using=US), outbox_context(flush=False):
            # This connection holds the row; the other one waits for it, and then finds it changed.
            Project.objects.filter(pk=gone.pk).update(archived=False)
            before = last_id()

            def update() -> int:
                with outbox_context(flush=False):
                    return Project.objects.filter(archived=True).update(name="X")

            worker = Worker(update)
            worker.start()
            _wait_for_a_lock()
        assert worker.finish() == 1
        told = CellOutbox.objects.filter(id__gt=before).values_list("object_identifier", flat=True)
        assert first.pk in told
        assert Project.objects.get(pk=gone.pk).name != "X"

    @pytest.mark.parametrize("inside", [True, False])
    def test_an_update_in_one_statement_is_flushed_after_its_commit(
        self, inside: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed: list[Written] = []
        org = create_organization(cell="us")
        with outbox_context(flush=False):
            member = new_member(org)
        monkeypatch.setattr(flushing, "flush_written", lambda written, _: flushed.append(written))
        if inside:
            with transaction.atomic(using=US):
                OrganizationMember.objects.update(role="X")
                assert flushed == []
        else:
            OrganizationMember.objects.update(role="X")
        (written,) = flushed
        (row,) = written.rows
        assert row[:4] == (last_id(), ShardKey(0, org.id), 3, member.id)

    def test_an_update_that_is_not_flushed_is_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed: list[Written] = []
        org = create_organization(cell="us")
        with outbox_context(flush=False):
            new_member(org)
            monkeypatch.setattr(flushing, "flush_written", lambda *each: flushed.append(each[0]))
            OrganizationMember.objects.update(role="X")
        assert flushed == []
        assert len(objects()) >= 1


def _changed_while(disturb: Any, *projects: Project) -> set[int]:
    """Update archived projects while another connection writes; return whom the messages are about."""
    done = []

    def between(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        if sql.startswith("UPDATE") and not done:
            done.append(True)
            with Worker(disturb) as worker:
                worker.finish()
        return execute(sql, params, many, context)

    with connections[US].execute_wrapper(between), outbox_context(flush=False):
        before = last_id()
        Project.objects.filter(archived=True).update(name="X")
    assert done
    told = {
        each.object_identifier
        for each in CellOutbox.objects.filter(id__gt=before)
        # What the other connection wrote is about its own change.
        if each.object_identifier != projects[-1].pk
    }
    changed = set(Project.objects.filter(name="X").values_list("pk", flat=True))
    assert changed == told
    return changed


def _wait_for_a_lock() -> None:
    """Wait until some session waits for a lock on this database."""
    for _ in range(2000):
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.01), count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[1]:
                return
    raise AssertionError("nobody waited for a lock")
