"""The engines of the drain benchmark, each with two steps: fill and drain."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hybridcloud.outbox import CellOutbox, process_cell_outbox
from hybridcloud.outbox.drain.limits import LIMITS
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo
from tests.benchmarks import per_message, world
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.subjects.models import PerMessageOutbox
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.benchmarks.shapes import Shape

OUTBOX = "hybridcloud_celloutbox"
OURS = (OUTBOX, "hybridcloud_celllease", "hybridcloud_cellfailure", "hybridcloud_cellparked")
THEIRS = PerMessageOutbox._meta.db_table


class Engine(Protocol):
    """An engine that passes messages to a handler."""

    def rate(self, shape: Shape, *, handler_ms: float) -> float:
        """Fill and drain; return messages per second of the draining alone."""
        ...


def handler(wait_ms: float, calls: list[int]) -> Callable[..., None]:
    """Make a receiver that counts its calls, and waits if asked to."""
    seconds = wait_ms / 1000

    def no_op(**_: Any) -> None:
        calls[0] += 1

    def slow(**_: Any) -> None:
        calls[0] += 1
        time.sleep(seconds)

    return slow if wait_ms else no_op


@contextmanager
def receiving(category: Category, receiver: Callable[..., None]) -> Iterator[None]:
    """Connect a receiver to a category for a block."""
    process_cell_outbox.connect(receiver, sender=category, weak=False)
    try:
        yield
    finally:
        process_cell_outbox.disconnect(receiver, sender=category)


class Ours:
    """The engine through its public API; its `Drainer` drains its messages."""

    def __init__(self, category: Category = Category.DRAINED) -> None:
        self.category = category

    def fill(self, shape: Shape) -> None:
        world.empty(*OURS)
        # Not in an outbox_context, which would write only the newest message of each object.
        CellOutbox.objects.using(US).bulk_create(
            self.category.as_cell_outbox(
                shard_identifier=shard, object_identifier=each, payload={"n": each}
            )
            for shard, each in shape.rows()
        )
        world.settle(OUTBOX)

    def drain(self) -> None:
        with assume_silo(SiloMode.CELL, cell="us"):
            Drainer(CellOutbox, US).sweep(budget=600)

    def rate(self, shape: Shape, *, handler_ms: float = 0) -> float:
        self.fill(shape)
        calls = [0]
        with receiving(self.category, handler(handler_ms, calls)):
            begin = time.perf_counter()
            self.drain()
            seconds = time.perf_counter() - begin
        wanted = shape.calls_in_passes_of(LIMITS.messages_per_pass)
        _check("ours", calls[0], wanted, OUTBOX)
        return shape.count / seconds


class PerMessage:
    """The per-message algorithm on a table of its own."""

    def fill(self, shape: Shape) -> None:
        world.empty(THEIRS)
        PerMessageOutbox.objects.using(US).bulk_create(
            [
                PerMessageOutbox(
                    shard_scope=Category.DRAINED.get_scope(),
                    shard_identifier=shard,
                    category=Category.DRAINED,
                    object_identifier=each,
                    payload={"n": each},
                )
                for shard, each in shape.rows()
            ],
            batch_size=1000,
        )
        world.settle(THEIRS)

    def rate(self, shape: Shape, *, handler_ms: float = 0) -> float:
        self.fill(shape)
        calls = [0]
        receiver = handler(handler_ms, calls)
        per_message.process_message.connect(receiver, sender=Category.DRAINED, weak=False)
        try:
            begin = time.perf_counter()
            per_message.process_batch()
            seconds = time.perf_counter() - begin
        finally:
            per_message.process_message.disconnect(receiver, sender=Category.DRAINED)
        _check("per message", calls[0], shape.calls, THEIRS)
        return shape.count / seconds


def _check(who: str, calls: int, wanted: int, table: str) -> None:
    left = world.execute(f"SELECT count(*) FROM {table}")[0][0]
    if calls != wanted or left:
        raise AssertionError(
            f"{who}: {calls} handler calls instead of {wanted}, {left} messages left. "
            f"The figure is invalid, as the engine did not do all the work."
        )
