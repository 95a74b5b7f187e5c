"""The test recipes that users know from the reference work here; without it they would have to learn anew."""

from __future__ import annotations

from django.test import TestCase

from fixtures.acme.categories import Category, Scope
from fixtures.acme.factories import Factories
from fixtures.acme.models import (
    Organization,
    OrganizationMember,
    Project,
    ProjectMapping,
    User,
    UserReplica,
)
from hybridcloud.outbox import CellOutbox, ControlOutbox, OutboxCategory
from hybridcloud.testutils import (
    all_silo_test,
    assume_test_silo_mode_of,
    cell_silo_test,
    control_silo_test,
    outbox_context,
    outbox_runner,
)
from silos import SiloMode, get_current_silo


@cell_silo_test
class CellOutboxTest(Factories, TestCase):
    """Creation of cell messages, as in the reference's recipes."""

    def test_outbox_context_without_flush_only_writes(self) -> None:
        with outbox_context(flush=False):
            Organization(id=10).outbox_for_update().save()

        assert CellOutbox.objects.count() == 1

    def test_outbox_created_on_save(self) -> None:
        with outbox_context(flush=False):
            member = OrganizationMember(id=10, organization_id=1)
            member.outbox_for_update().save()

        outbox = CellOutbox.objects.get()
        assert outbox.category == Category.ORGANIZATION_MEMBER_UPDATE.value
        assert outbox.shard_scope == Scope.ORGANIZATION_SCOPE.value
        assert outbox.shard_identifier == 1
        assert outbox.object_identifier == 10

    def test_the_test_runs_in_the_cell(self) -> None:
        assert get_current_silo().mode is SiloMode.CELL
        assert get_current_silo().cell == "us"


@control_silo_test
class ControlOutboxTest(Factories, TestCase):
    """Creation of control messages, as in the reference's recipes."""

    def test_outboxes_created_for_each_cell(self) -> None:
        with outbox_context(flush=False):
            for outbox in Category.USER_UPDATE.as_control_outboxes(["us", "eu"], model=User(id=10)):
                outbox.save()

        assert {outbox.cell_name for outbox in ControlOutbox.objects.all()} == {"us", "eu"}

    def test_the_test_runs_in_control(self) -> None:
        assert get_current_silo().mode is SiloMode.CONTROL


@all_silo_test
class ReplicationTest(Factories, TestCase):
    """Whole ways, as in the reference's recipes, from each silo."""

    def test_replication_creates_mapping(self) -> None:
        with outbox_runner():
            org = self.create_organization()
        with outbox_runner():
            obj = self.create_project(org, "test")

        with assume_test_silo_mode_of(ProjectMapping):
            mapping = ProjectMapping.objects.get(project_id=obj.id)
            assert mapping.name == "test"

    def test_save_in_the_models_silo(self) -> None:
        org = self.create_organization()
        with outbox_runner(), assume_test_silo_mode_of(Project):
            obj = Project.objects.create(organization=org, name="test", slug="test")

        with assume_test_silo_mode_of(ProjectMapping):
            assert ProjectMapping.objects.filter(project_id=obj.id).exists()

    def test_delete_cleans_up_mapping(self) -> None:
        org = self.create_organization()
        with outbox_runner():
            obj = self.create_project(org, "test")
        identifier = obj.id

        with outbox_runner(), assume_test_silo_mode_of(Project):
            obj.delete()

        with assume_test_silo_mode_of(ProjectMapping):
            assert not ProjectMapping.objects.filter(project_id=identifier).exists()

    def test_idempotent_replication(self) -> None:
        org = self.create_organization()
        with outbox_runner():
            self.create_project(org, "test")

        with assume_test_silo_mode_of(ProjectMapping):
            count_after_first = ProjectMapping.objects.count()
        assert count_after_first == 1

        with outbox_runner():
            pass  # drain again: nothing to do

        with assume_test_silo_mode_of(ProjectMapping):
            assert ProjectMapping.objects.count() == count_after_first

    def test_handlers_that_write_messages_are_followed(self) -> None:
        user = self.create_user()
        with outbox_runner():
            self.create_member(self.create_organization(cell="eu"), user)

        with assume_test_silo_mode_of(UserReplica, cell="eu"):
            assert UserReplica.objects.filter(user_id=user.id).exists()


def test_the_base_category_has_no_members() -> None:
    assert not OutboxCategory.__members__
