"""Tombstones: records of deleted rows, for the silos that refer to them."""

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
