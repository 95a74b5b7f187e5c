"""Tombstones: without them what points at a row of another silo would never hear that the row is gone."""

from __future__ import annotations

from hybridcloud.tombstones.foreign_key import HybridCloudForeignKey, OnDelete
from hybridcloud.tombstones.service import (
    CellTombstoneService,
    ControlTombstoneService,
    RpcTombstone,
    cell_tombstone_service,
    control_tombstone_service,
)

__all__ = [
    "CellTombstoneService",
    "ControlTombstoneService",
    "HybridCloudForeignKey",
    "OnDelete",
    "RpcTombstone",
    "cell_tombstone_service",
    "control_tombstone_service",
]
