"""Tombstones end in the silo that was meant, once each; without it a cascade would miss rows or repeat itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from django.db import transaction

from hybridcloud.rpc import RpcValidationError
from hybridcloud.tombstones import RpcTombstone, cell_tombstone_service, control_tombstone_service
from hybridcloud.tombstones.models import CellTombstone, ControlTombstone
from silos import SiloMode, assume_silo
from silos.errors import UnknownCellError
from tests.hybridcloud.outbox.engine import Worker

if TYPE_CHECKING:
    from hybridcloud.tombstones.models import TombstoneBase

TOMBSTONE = RpcTombstone(table_name="acme_user", identifier=7)


def noted(model: type[TombstoneBase], alias: str) -> list[tuple[str, int]]:
    """Return what is noted in a silo's database."""
    rows = model._base_manager.using(alias).order_by("id")
    return [(row.table_name, row.object_identifier) for row in rows]


@pytest.mark.django_db
def test_a_cell_tells_control() -> None:
    with assume_silo(SiloMode.CELL, cell="us"):
        control_tombstone_service.record_remote_tombstone(tombstone=TOMBSTONE)
    assert noted(ControlTombstone, "control") == [("acme_user", 7)]


@pytest.mark.django_db
def test_control_tells_the_cell_that_it_names() -> None:
    with assume_silo(SiloMode.CONTROL):
        cell_tombstone_service.record_remote_tombstone(cell_name="eu", tombstone=TOMBSTONE)
    assert noted(CellTombstone, "cell_eu") == [("acme_user", 7)]
    assert noted(CellTombstone, "cell_us") == []


@pytest.mark.django_db
def test_a_tombstone_that_comes_again_changes_nothing() -> None:
    for _ in range(2):
        control_tombstone_service.record_remote_tombstone(tombstone=TOMBSTONE)
    (row,) = ControlTombstone._base_manager.using("control")
    first = row.created_at
    with assume_silo(SiloMode.CONTROL), transaction.atomic(using="control"):
        # An error inside the caller's transaction would end it.
        ControlTombstone.record_delete("acme_user", 7)
        ControlTombstone.record_delete("acme_user", 8)
    row.refresh_from_db()
    assert row.created_at == first
    assert noted(ControlTombstone, "control") == [("acme_user", 7), ("acme_user", 8)]


@pytest.mark.django_db(transaction=True)
def test_two_that_come_at_once_are_one() -> None:
    start = threading.Barrier(2)

    def tell() -> None:
        start.wait(10)
        with assume_silo(SiloMode.CONTROL):
            ControlTombstone.record_delete("acme_user", 7)

    with Worker(tell), Worker(tell):
        pass
    assert noted(ControlTombstone, "control") == [("acme_user", 7)]


@pytest.mark.django_db
def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(UnknownCellError, match="mars"):
        cell_tombstone_service.record_remote_tombstone(cell_name="mars", tombstone=TOMBSTONE)


@pytest.mark.django_db
def test_a_tombstone_without_table_is_refused() -> None:
    broken = RpcTombstone.model_construct(identifier=7)
    with assume_silo(SiloMode.CELL, cell="us"), pytest.raises((RpcValidationError, AttributeError)):
        control_tombstone_service.record_remote_tombstone(tombstone=broken)
    assert noted(ControlTombstone, "control") == []
