"""A user is deleted in control: all that pointed at them goes, all else stays, whatever comes first."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.acme import factories
from fixtures.acme.models import (
    OrganizationMember,
    OrganizationMemberMapping,
    Project,
    User,
    UserReplica,
)
from hybridcloud.options import set as set_option
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import (
    assume_test_silo_mode_of,
    outbox_runner,
    override_options,
    run_cascades,
)
from silos import SiloMode, assume_silo

if TYPE_CHECKING:
    from django.db import models

pytestmark = pytest.mark.django_db(transaction=True)


class Office:
    """A user with a membership and a project in each cell, and another user beside."""

    def __init__(self) -> None:
        with outbox_runner():
            self.gone = factories.create_user("gone")
            self.stays = factories.create_user("stays")
            for cell in ("us", "eu"):
                organization = factories.create_organization(f"Acme {cell}", cell=cell)
                for user in (self.gone, self.stays):
                    member = factories.create_member(organization, user)
                    factories.create_project(organization, user.username, lead=member)

    def delete(self) -> None:
        """Delete the user in control."""
        with assume_test_silo_mode_of(User):
            User.objects.get(pk=self.gone.pk).delete()

    def left(self, model: type[models.Model], column: str, cell: str | None = None) -> list[Any]:
        """Return a column of what is left of a model."""
        with assume_test_silo_mode_of(model, cell=cell):
            return sorted(model._default_manager.values_list(column, flat=True))

    def left_pairs(self, model: type[models.Model], *columns: str) -> list[Any]:
        """Return columns of what is left of a cell's model; the last of them is the cell."""
        *names, cell = columns
        with assume_test_silo_mode_of(model, cell=cell):
            return list(model._default_manager.values_list(*names))

    def check(self) -> None:
        """Everything of the user is gone, everything else is there."""
        for cell in ("us", "eu"):
            assert self.left(OrganizationMember, "user_id", cell) == [self.stays.pk]
            leads = dict(self.left_pairs(Project, "slug", "lead__user_id", cell))
            assert leads == {"gone": None, "stays": self.stays.pk}
            assert self.left(UserReplica, "user_id", cell) == [self.stays.pk]
        assert self.left(OrganizationMemberMapping, "user_id") == [self.stays.pk] * 2


@pytest.mark.parametrize("order", list(permutations(["deliver", "us", "eu"])), ids="-".join)
def test_everything_that_should_go_is_gone_in_any_order_of_the_tasks(
    order: tuple[str, ...],
) -> None:
    office = Office()
    office.delete()
    for step in (*order, *order):
        with outbox_runner():
            if step != "deliver":
                run_cascades(step)
    office.check()


def test_a_cell_that_was_down_for_a_while_catches_up() -> None:
    office = Office()
    with override_options({DISABLED_SHARDS: [{"cell": "eu"}]}):
        with outbox_runner():
            office.delete()
        with outbox_runner():
            run_cascades()
        assert office.left(OrganizationMember, "user_id", "us") == [office.stays.pk]
        assert len(office.left(OrganizationMember, "user_id", "eu")) == 2
    with outbox_runner():
        pass
    with outbox_runner():
        run_cascades()
    office.check()


def test_options_of_one_silo_are_not_those_of_another() -> None:
    """Setting one in control does not reach the cells."""
    with assume_silo(SiloMode.CONTROL):
        set_option("hybrid_cloud.disable_tombstone_cleanup", value=True, by="test")
    office = Office()
    with outbox_runner():
        office.delete()
    with outbox_runner():
        run_cascades()
    office.check()
