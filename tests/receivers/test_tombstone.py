"""A change is told from a deletion by the row itself; without it hidden rows would be taken for deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from django.apps.registry import Apps
from django.db import models

from fixtures.acme import factories
from fixtures.acme.models import AuthProvider, Organization, Team, User
from hybridcloud.errors import ConfigurationError
from hybridcloud.rpc import RpcError
from hybridcloud.tombstones.models import CellTombstone, ControlTombstone
from receivers.outbox import maybe_process_tombstone
from silos import AvailabilityError, SiloMode, assume_silo, cell_silo_model

if TYPE_CHECKING:
    from hybridcloud.tombstones.models import TombstoneBase

pytestmark = pytest.mark.django_db
GONE = 987_654


class Visible(models.Manager[Any]):
    """Hides every row."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


@cell_silo_model
class HiddenTeam(models.Model):
    """A team as a model sees it whose default manager hides rows."""

    name = models.CharField(max_length=200)
    objects: ClassVar[models.Manager[Any]] = Visible()

    class Meta:
        app_label = "receiver_tests"
        apps = Apps()
        db_table = "acme_team"
        managed = False


def noted(model: type[TombstoneBase], alias: str) -> list[tuple[str, int]]:
    rows = model._base_manager.using(alias).order_by("id")
    return [(row.table_name, row.object_identifier) for row in rows]


def test_a_row_that_is_there_is_returned_and_nothing_noted() -> None:
    organization = factories.create_organization(cell="us")
    with assume_silo(SiloMode.CELL, cell="us"):
        found = maybe_process_tombstone(Organization, organization.id)
    assert found == organization
    assert noted(ControlTombstone, "control") == []


def test_a_row_of_a_cell_that_is_gone_is_noted_in_control() -> None:
    with assume_silo(SiloMode.CELL, cell="us"):
        assert maybe_process_tombstone(Team, GONE) is None
        assert maybe_process_tombstone(Team, GONE) is None
    assert noted(ControlTombstone, "control") == [("acme_team", GONE)]
    assert noted(CellTombstone, "cell_us") == []


def test_a_row_of_control_that_is_gone_is_noted_in_the_cell_of_the_message() -> None:
    with assume_silo(SiloMode.CONTROL):
        assert maybe_process_tombstone(User, GONE, cell_name="eu") is None
    assert noted(CellTombstone, "cell_eu") == [("acme_user", GONE)]
    assert noted(CellTombstone, "cell_us") == []
    assert noted(ControlTombstone, "control") == []


def test_a_row_of_another_cell_is_not_there() -> None:
    organization = factories.create_organization(cell="us")
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert maybe_process_tombstone(Organization, organization.id) is None


def test_in_a_monolith_the_model_decides_where_it_is_looked_for() -> None:
    user = factories.create_user()
    organization = factories.create_organization(cell="us")
    with assume_silo(SiloMode.MONOLITH, cell="us"):
        assert maybe_process_tombstone(User, user.id, cell_name="us") == user
        assert maybe_process_tombstone(Organization, organization.id) == organization
        assert maybe_process_tombstone(AuthProvider, GONE, cell_name="us") is None
    assert noted(CellTombstone, "cell_us") == [("acme_authprovider", GONE)]


def test_a_row_that_the_default_manager_hides_is_not_deleted() -> None:
    team = factories.create_team(factories.create_organization(cell="us"))
    with assume_silo(SiloMode.CELL, cell="us"):
        assert not HiddenTeam.objects.exists()
        found = maybe_process_tombstone(HiddenTeam, team.id)
    assert found is not None
    assert found.name == team.name
    assert noted(ControlTombstone, "control") == []


def test_a_model_of_control_needs_the_cell_of_the_message() -> None:
    with (
        assume_silo(SiloMode.CONTROL),
        pytest.raises(ConfigurationError, match=r"No cell for a tombstone of acme\.User"),
    ):
        maybe_process_tombstone(User, GONE)


def test_a_model_of_cells_takes_no_cell() -> None:
    with (
        assume_silo(SiloMode.CELL, cell="us"),
        pytest.raises(ConfigurationError, match=r"acme\.Team, a model of cells.*Leave cell_name"),
    ):
        maybe_process_tombstone(Team, GONE, cell_name="eu")


def test_a_model_of_another_silo_is_not_taken_for_deleted() -> None:
    with assume_silo(SiloMode.CONTROL), pytest.raises(AvailabilityError, match="Team"):
        maybe_process_tombstone(Team, GONE)


def test_a_silo_that_cannot_be_told_is_an_error_so_that_the_message_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("full")

    monkeypatch.setattr(ControlTombstone, "record_delete", refuse)
    with assume_silo(SiloMode.CELL, cell="us"), pytest.raises(RpcError):
        maybe_process_tombstone(Team, GONE)
