"""A save and its message are one statement where nothing else belongs to the save, and else as they were."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F
from django.db.models.signals import post_save, pre_save

from fixtures.acme.categories import Category
from fixtures.acme.factories import create_member, create_organization, create_project
from fixtures.acme.models import Organization, OrganizationMember, Team, User
from hybridcloud import hooks
from hybridcloud.errors import InvalidOutboxError
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.deliver import flush as flushing
from hybridcloud.outbox.write import one_statement as combined
from hybridcloud.tombstones.models import CellTombstone
from hybridcloud.tombstones.watermark import CascadeRecheck

from .conftest import ALIASES
from .engine import US, Worker
from .wire import Traffic, traffic
from .writing import Saves, last_id, recorded, rolled_back
from .zoo import Beast, Bird, Herd, House, Nest, Pen, Tag, Zoo

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hybridcloud.outbox.deliver.flush import Written

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=ALIASES),
    pytest.mark.usefixtures("unflushed_us"),
]
MEMBER = Category.ORGANIZATION_MEMBER_UPDATE.value


@pytest.fixture
def member(org: Organization) -> OrganizationMember:
    return create_member(org, User(id=1))


def counted() -> AbstractContextManager[Traffic]:
    return traffic(US)


def long_way(seen: Traffic) -> bool:
    """Say whether a save took a transaction and a statement for the message."""
    return (seen.round_trips, dict(seen.statements)) == (4, {"INSERT": 2}) or (
        (seen.round_trips, dict(seen.statements)) == (4, {"UPDATE": 1, "INSERT": 1})
    )


@pytest.mark.usefixtures("zoo")
def test_a_lone_save_takes_one_round_trip_with_its_message() -> None:
    with recorded() as made:
        with counted() as seen:
            pen = Pen.objects.create()
        with counted() as again:
            pen.save()
    assert (seen.round_trips, again.round_trips) == (1, 1)
    assert made == [(Zoo.PEN.value, pen.id, Beast.PEN.value, pen.id, None)] * 2


def test_a_save_in_a_transaction_takes_no_round_trip_more_than_without(
    org: Organization,
) -> None:
    with counted() as seen, transaction.atomic(using=US):
        for _ in range(10):
            org.save()
    assert seen.round_trips == 12
    assert seen.commits == 1


def test_a_row_that_update_does_not_find_is_inserted_with_one_message() -> None:
    with recorded() as made, counted() as seen:
        org = Organization(id=77, name="A", slug="a")
        org.save()
    assert seen.round_trips == 2
    assert made == [(0, 77, Category.ORGANIZATION_UPDATE.value, 77, None)]
    assert Organization.objects.get().id == 77


def test_what_the_database_computes_is_told_and_not_the_expression(
    member: OrganizationMember,
) -> None:
    other = create_organization(cell="us")
    with recorded() as made:
        member.organization_id = F("organization_id") + (other.id - member.organization_id)
        member.save()
    assert made == [(0, other.id, MEMBER, member.id, None)]


def test_a_row_that_is_gone_has_no_message(member: OrganizationMember) -> None:
    OrganizationMember.objects.filter(pk=member.pk).delete()
    with recorded() as made, pytest.raises(DatabaseError):
        member.save(force_update=True)
    assert made == []


@pytest.mark.parametrize("block", [nullcontext, partial(transaction.atomic, using=US)])
def test_a_row_that_is_refused_has_no_message(
    org: Organization, member: OrganizationMember, block: Any
) -> None:
    with recorded() as made, pytest.raises(IntegrityError), block():
        OrganizationMember.objects.create(organization=org, user_id=member.user_id)
    assert made == []


def test_a_message_that_is_refused_takes_its_row_along(org: Organization) -> None:
    with connections[US].cursor() as cursor:
        cursor.execute(
            "ALTER TABLE hybridcloud_celloutbox ADD CONSTRAINT no_more CHECK (category < 0) NOT VALID"
        )
    try:
        with pytest.raises(IntegrityError, match="no_more"):
            OrganizationMember.objects.create(organization=org, user_id=1)
    finally:
        with connections[US].cursor() as cursor:
            cursor.execute("ALTER TABLE hybridcloud_celloutbox DROP CONSTRAINT no_more")
    assert not OrganizationMember.objects.exists()


def test_a_retired_category_is_refused_before_anything_is_written(
    org: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    category = Category.ORGANIZATION_MEMBER_UPDATE
    scope = category.get_scope()
    monkeypatch.setattr(scope, "policy", replace(scope.policy, retired=frozenset({category})))
    with recorded() as made, pytest.raises(InvalidOutboxError, match="Retired category"):
        OrganizationMember.objects.create(organization=org, user_id=1)
    assert made == []
    assert not OrganizationMember.objects.exists()


def test_of_two_writers_of_one_row_the_later_has_the_higher_id(member: OrganizationMember) -> None:
    """The id is drawn when the row's lock is held: else the older state would be handled last."""
    before = last_id()

    def save_the_same() -> None:
        OrganizationMember.objects.get(pk=member.pk).save()

    with transaction.atomic(using=US):
        member.save()
        first = last_id()
        with Worker(lambda: _blocked_by(member)) as looks:
            later = Worker(save_the_same)
            later.start()
        assert looks.result
        # Another row's message, between the two in time.
        create_member(member.organization, User(id=9))
        newest = last_id()
    later.finish()
    assert before < first < newest < last_id()


def _blocked_by(member: OrganizationMember) -> bool:
    """Wait until a session waits for a row's lock."""
    for _ in range(2000):
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.01), count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[1]:
                return True
    return False


def test_what_a_foreign_key_notes_behind_a_lone_save_is_no_part_of_it(org: Organization) -> None:
    """It is written after the row is committed, when the long way would save the row again."""
    CellTombstone.objects.create(table_name="acme_user", object_identifier=5)
    with recorded() as made:
        member = OrganizationMember.objects.create(organization=org, user_id=5)
    assert [each[3] for each in made] == [member.id]
    assert CascadeRecheck.objects.filter(object_identifier=5).exists()


def test_a_save_inside_another_silos_transaction_has_its_own(org: Organization) -> None:
    with transaction.atomic(using="control"), counted() as seen:
        org.save()
    assert long_way(seen)


def test_a_savepoint_that_rolls_back_takes_row_and_message_along(org: Organization) -> None:
    facts = Saves()
    with recorded() as made, hooks.installed(facts), transaction.atomic(using=US):
        with rolled_back(transaction.atomic(using=US)):
            OrganizationMember.objects.create(organization=org, user_id=1)
        kept = OrganizationMember.objects.create(organization=org, user_id=2)
        assert facts.facts == []
    assert [each[3] for each in made] == [kept.id]
    assert [fact.counts for fact in facts.facts] == [{MEMBER: 1}]


def test_a_connection_that_commits_by_hand_takes_row_and_message_or_neither(
    org: Organization,
) -> None:
    connection = connections[US]
    with recorded() as made:
        connection.set_autocommit(False)
        try:
            org.save()
            connection.rollback()
            org.save()
            connection.commit()
        finally:
            connection.set_autocommit(True)
    assert [each[3] for each in made] == [org.id]


class TestFlush:
    @pytest.fixture
    def flushed(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "sync"}
        seen: list[list[int]] = []

        def note(written: Written, _: str) -> None:
            assert not connections[US].in_atomic_block
            seen.append([each.object_identifier for each in written.rows])

        monkeypatch.setattr(flushing, "flush_written", note)
        return seen

    def test_what_a_save_wrote_is_flushed_when_it_is_committed(
        self, flushed: list[list[int]], member: OrganizationMember
    ) -> None:
        flushed.clear()
        member.save()
        assert flushed == [[member.id]]
        with transaction.atomic(using=US):
            member.save()
            assert len(flushed) == 1
        assert flushed == [[member.id]] * 2

    def test_an_instance_is_whole_when_its_handler_runs(
        self, org: Organization, monkeypatch: pytest.MonkeyPatch, flushed: list[list[int]]
    ) -> None:
        made = OrganizationMember(organization=org, user_id=1)
        states: list[Any] = []
        monkeypatch.setattr(
            flushing, "flush_written", lambda *_: states.append((made.pk, made._state.adding))
        )
        made.save()
        assert states == [(made.pk, False)]

    def test_a_context_around_a_lone_save_says_whether_it_is_flushed(
        self, flushed: list[list[int]], member: OrganizationMember
    ) -> None:
        flushed.clear()
        with outbox_context(flush=False):
            member.save()
        assert flushed == []


class TestTheLongWay:
    """Whatever else runs with a save finds a transaction, and the row's message behind its own."""

    def test_a_receiver_of_djangos_signals(self, org: Organization) -> None:
        in_transaction: list[bool] = []

        def receive(**_: Any) -> None:
            in_transaction.append(connections[US].in_atomic_block)

        for signal in (pre_save, post_save):
            signal.connect(receive, sender=Organization)
            try:
                with counted() as seen:
                    org.save()
            finally:
                signal.disconnect(receive, sender=Organization)
            assert long_way(seen)
        assert in_transaction == [True, True]

    def test_a_payload(self, org: Organization) -> None:
        project = create_project(org)
        with counted() as seen:
            project.save()
        assert long_way(seen)

    def test_messages_of_ones_own(self, org: Organization) -> None:
        with counted() as seen:
            Team.objects.create(organization=org, slug="a", name="A")
        assert long_way(seen)

    def test_an_override_of_the_hook_around_the_change(
        self, org: Organization, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = Organization.prepare_outboxes

        def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(Organization, "prepare_outboxes", prepare)
        with counted() as seen:
            org.save()
        assert long_way(seen)

    @pytest.mark.parametrize("step", ["save_base", "_save_table", "_do_insert", "_do_update"])
    def test_a_step_of_djangos_that_a_model_overrides(
        self, org: Organization, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        plain = getattr(Organization, step)

        def own(self: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self, *args, **kwargs)

        monkeypatch.setattr(Organization, step, own)
        combined._is_saved_by_django_alone.cache_clear()
        try:
            with counted() as seen:
                org.save()
        finally:
            combined._is_saved_by_django_alone.cache_clear()
        assert long_way(seen)

    def test_a_block_that_gathers_messages(self, member: OrganizationMember) -> None:
        with recorded() as made, outbox_context(transaction.atomic(using=US)):
            member.save()
            member.save()
        assert len(made) == 1

    @pytest.mark.usefixtures("zoo")
    def test_a_child_of_two_tables(self) -> None:
        pen = Pen.objects.create(name="A")
        with recorded() as made:
            bird = Bird.objects.create(pen=pen)
        assert [each[3] for each in made] == [bird.pk]

    @pytest.mark.usefixtures("zoo")
    def test_a_key_that_another_row_is_made_for(self) -> None:
        """It is found in the middle of the save, so nothing of it may be done yet."""
        nest, houses = Nest(pk=None), House.objects.count()
        with recorded() as made, counted() as seen:
            nest.save()
        assert [each[3] for each in made] == [nest.pk]
        assert seen.statements == {"INSERT": 3}
        assert (seen.round_trips, seen.commits) == (5, 1)
        assert House.objects.count() == houses + 1

    @pytest.mark.usefixtures("zoo")
    @pytest.mark.parametrize("model", [Herd, Tag], ids=["save", "field"])
    @pytest.mark.parametrize("block", [nullcontext, partial(transaction.atomic, using=US)])
    def test_code_from_elsewhere_that_changes_other_rows_first(
        self, model: type[Herd | Tag], block: Any
    ) -> None:
        first = model.objects.create()
        with recorded() as made, block():
            second = model.objects.create()
        assert [each[3] for each in made] == [second.pk]
        first.refresh_from_db()
        assert first.place > second.place == 0
