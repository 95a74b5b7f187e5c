"""The framework's concrete models, imported where Django looks for them."""

from __future__ import annotations

from hybridcloud.backfill.models import BackfillCursor
from hybridcloud.options.models import Option, OptionHistory
from hybridcloud.outbox.models import CellOutbox, ControlOutbox
from hybridcloud.outbox.store.state import (
    CellFailure,
    CellLease,
    CellParked,
    ControlFailure,
    ControlLease,
    ControlParked,
)
from hybridcloud.tombstones.models import CellTombstone, ControlTombstone
from hybridcloud.tombstones.watermark import CascadeRecheck, CascadeWatermark

__all__ = [
    "BackfillCursor",
    "CascadeRecheck",
    "CascadeWatermark",
    "CellFailure",
    "CellLease",
    "CellOutbox",
    "CellParked",
    "CellTombstone",
    "ControlFailure",
    "ControlLease",
    "ControlOutbox",
    "ControlParked",
    "ControlTombstone",
    "Option",
    "OptionHistory",
]
