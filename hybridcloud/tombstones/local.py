"""Writes tombstones from the other silo to this silo's database."""

from __future__ import annotations

from hybridcloud.tombstones.models import CellTombstone, ControlTombstone
from hybridcloud.tombstones.service import (
    CellTombstoneService,
    ControlTombstoneService,
    RpcTombstone,
)


class DatabaseCellTombstoneService(CellTombstoneService):
    """Tombstones in a cell's database."""

    def record_remote_tombstone(self, *, cell_name: str, tombstone: RpcTombstone) -> None:  # noqa: ARG002
        """Write the tombstone unless it exists."""
        CellTombstone.record_delete(tombstone.table_name, tombstone.identifier)


class DatabaseControlTombstoneService(ControlTombstoneService):
    """Tombstones in control's database."""

    def record_remote_tombstone(self, *, tombstone: RpcTombstone) -> None:
        """Write the tombstone unless it exists."""
        ControlTombstone.record_delete(tombstone.table_name, tombstone.identifier)
