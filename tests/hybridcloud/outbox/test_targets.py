"""Control messages: each is for one cell, and a cell that is stopped costs the others nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from hybridcloud.outbox import ControlOutbox, outbox_context, process_control_outbox
from hybridcloud.outbox.drain.ahead import Ahead, ahead_of
from hybridcloud.outbox.drain.loop import Drainer
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import NO_BOUND, Engine
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo
from silos.mode import get_current_silo

from .engine import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridcloud.outbox.drain.ahead import Rows

pytestmark = pytest.mark.usefixtures("committed")
CONTROL = "control"


def send(*cells: str, shard: int = 1, obj: int = 1) -> None:
    """Commit a message for each cell."""
    messages = Kind.PLAIN.as_control_outboxes(cells, shard_identifier=shard, object_identifier=obj)
    with outbox_context(transaction.atomic(using=CONTROL), flush=False):
        for message in messages:
            message.save(using=CONTROL)


def drain(**more: Any) -> int:
    """Drain control's outbox as a task does."""
    with assume_silo(SiloMode.CONTROL):
        return Drainer(ControlOutbox, CONTROL).sweep(**more)


@contextmanager
def listening() -> Iterator[list[tuple[str, int]]]:
    """Receive control messages; gather (cell, object)."""
    calls: list[tuple[str, int]] = []

    def receive(*, cell_name: str, object_identifier: int, **_: Any) -> None:
        assert get_current_silo().mode is SiloMode.CONTROL
        calls.append((cell_name, object_identifier))

    process_control_outbox.connect(receive, sender=Kind.PLAIN, weak=False)
    try:
        yield calls
    finally:
        process_control_outbox.disconnect(receive, sender=Kind.PLAIN)


def left() -> list[str]:
    """Return the cells of what is left."""
    rows = ControlOutbox.objects.using(CONTROL).order_by("cell_name")
    return list(rows.values_list("cell_name", flat=True))


def test_each_cell_gets_its_own_message() -> None:
    send("us", "eu")
    with listening() as calls:
        drain()
    assert sorted(calls) == [("eu", 1), ("us", 1)]
    assert left() == []


@pytest.mark.usefixtures("slow_looks")
@pytest.mark.parametrize("look", [Ahead.ahead, Ahead.behind])
def test_a_look_by_ids_is_for_the_messages_of_one_cell(
    look: Callable[[Ahead, Engine, str], Rows],
) -> None:
    send("us", shard=1)
    send("eu", shard=2)
    engine = Engine(ControlOutbox, CONTROL)
    for cell, shard in (("us", 1), ("eu", 2)):
        known = ahead_of(engine, cell)
        known.passed = 0 if look is Ahead.ahead else NO_BOUND
        rows = look(known, engine, cell)
        assert [key for key, _ in rows] == [ShardKey(Kind.PLAIN.get_scope(), shard, cell)]


def test_a_drain_without_time_for_all_goes_on_with_the_cells_that_had_no_turn() -> None:
    send("us", "eu", shard=1, obj=1)
    send("us", "eu", shard=2, obj=2)
    with listening() as calls:
        for _ in range(4):
            drain(budget=0)
    assert calls == [("eu", 1), ("us", 1), ("eu", 2), ("us", 2)]


@pytest.mark.rule(5)
def test_a_switched_off_cell_keeps_its_messages_while_the_other_gets_its_own() -> None:
    send("us", "eu")
    with listening() as calls:
        with override_options({DISABLED_SHARDS: [{"cell": "eu"}]}):
            drain()
            assert calls == [("us", 1)]
            assert left() == ["eu"]
        drain()
    assert left() == []


@pytest.mark.rule(5)
def test_a_disabled_cell_costs_one_probe_however_many_shards_it_has() -> None:
    def statements(shards: int) -> int:
        for shard in range(shards):
            send("eu", shard=shard)
        with (
            override_options({DISABLED_SHARDS: [{"cell": "eu"}]}),
            CaptureQueriesContext(connections[CONTROL]) as queries,
        ):
            drain()
        return len(queries.captured_queries)

    drain()  # reads the options, which are cached from then on
    with listening():
        assert statements(1) == statements(40)


def test_a_cell_whose_breaker_is_open_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridcloud.outbox.drain import gate

    monkeypatch.setattr(gate, "cell_is_broken", lambda cell: cell == "eu")
    send("us", "eu")
    with listening() as calls:
        drain()
    assert calls == [("us", 1)]
    assert left() == ["eu"]


@pytest.mark.rule(5)
def test_one_shard_of_one_cell_can_be_switched_off() -> None:
    send("us", "eu", shard=1)
    send("us", "eu", shard=2, obj=2)
    with (
        listening() as calls,
        override_options({DISABLED_SHARDS: [{"cell": "eu", "scope": "PLAIN", "identifier": 1}]}),
    ):
        drain()
    assert sorted(calls) == [("eu", 2), ("us", 1), ("us", 2)]


@pytest.mark.rule(4)
def test_a_failing_cell_does_not_hold_up_the_others() -> None:
    send("us", "eu")

    def receive(*, cell_name: str, **_: Any) -> None:
        if cell_name == "eu":
            raise ConnectionError

    process_control_outbox.connect(receive, sender=Kind.PLAIN, weak=False)
    try:
        drain()
    finally:
        process_control_outbox.disconnect(receive, sender=Kind.PLAIN)
    assert left() == ["eu"]


def test_shards_of_a_cell_whose_breaker_opens_during_the_pass_count_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hybridcloud.outbox.drain import gate
    from hybridcloud.outbox.store.state import ControlFailure

    down: list[int] = []
    monkeypatch.setattr(gate, "cell_is_broken", lambda _: bool(down))
    for shard in range(5):
        send("eu", shard=shard, obj=shard)

    def receive(*, object_identifier: int, **_: Any) -> None:
        down.append(object_identifier)
        raise ConnectionError

    process_control_outbox.connect(receive, sender=Kind.PLAIN, weak=False)
    try:
        drain()
    finally:
        process_control_outbox.disconnect(receive, sender=Kind.PLAIN)
    assert len(down) == 1
    assert ControlFailure.objects.using(CONTROL).count() == 1
    assert len(left()) == 5
