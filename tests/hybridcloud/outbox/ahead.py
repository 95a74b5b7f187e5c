"""A drainer that goes ahead by ids; see the fixture ``slow_looks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain import ahead as horizon
from hybridcloud.outbox.store.session import Engine
from silos import SiloMode, assume_silo

from .engine import US, Kind, drain_us, listening, message, tuned, write

if TYPE_CHECKING:
    from hybridcloud.outbox.drain.ahead import Ahead

SHARDS = 5


def known() -> Ahead:
    return horizon.ahead_of(Engine(CellOutbox, US), None, tuned.limits)


def learn() -> None:
    """Drain until the drainer goes ahead."""
    for n in range(3):
        write(*(message(Kind.ORDERED, shard, obj=100 + n) for shard in range(1, SHARDS + 1)))
        with listening(Kind.ORDERED):
            drain_us()
    assert known().leads


def sweep(**more: Any) -> None:
    """Drain the us cell's outbox in one's own way."""
    from hybridcloud.outbox.drain.loop import Drainer

    with assume_silo(SiloMode.CELL, cell="us"):
        Drainer(CellOutbox, US, limits=tuned.limits).sweep(**more)
