"""How fast messages are drained, beside peers and the database's limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from hybridcloud.outbox.store import session as statements
from tests.benchmarks import peers, shapes, workers
from tests.benchmarks.engines import Engine, Ours, PerMessage
from tests.benchmarks.floors import ExactDeletes, RawLoop
from tests.benchmarks.measure import Results, alternate
from tests.benchmarks.peers import Peer
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.categories import Category

if TYPE_CHECKING:
    from tests.benchmarks.shapes import Shape

PROCRASTINATE: Final = Peer("run_procrastinate", (("concurrency", 1),))
PROCRASTINATE_10: Final = Peer("run_procrastinate", (("concurrency", 10),))
PGQUEUER: Final = Peer("run_pgqueuer", (("batch_size", 100),))
RELIABLE: Final = Peer("run_reliable_outbox", (("batch_size", 100),))

_HOT_KEY: Final = 400
"""django-reliable-outbox is quadratic in the depth of a key; more would not end in time."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much is measured.

    Attributes:
        runs: runs of each figure.
        turns: runs of a figure that differs little from another.
        messages: messages of a shape, at most.
        slow: messages for engines that would take minutes for a whole shape.
        waiting: messages for handlers that take time.
        with_peers: whether the peers run these handlers too.
    """

    runs: int
    turns: int
    messages: int
    slow: int
    waiting: int
    with_peers: bool


class DurableOurs(Ours):
    """Ours, with each acknowledgement flushed to disk before the next handler."""

    def drain(self) -> None:
        with patch.object(statements, "_RELAXED", ""):
            super().drain()


def _engines(shape: Shape, most: int) -> dict[str, tuple[Engine, Shape]]:
    """Return the engines for a shape with no-op handlers, each with its shape.

    Slow engines get fewer messages.
    """
    slow = shape.at_most(most)
    hot = shape.shards == 1
    repeated = shape.objects < shape.messages
    found: dict[str, tuple[Engine, Shape]] = {
        "ours": (Ours(), shape),
        "raw loop": (RawLoop(), shape),
        "exact deletes of 100, durable": (ExactDeletes(each=100), shape),
        "exact deletes of 5000, durable": (ExactDeletes(each=5000), shape),
        "per message": (PerMessage(), shape if repeated else slow),
    }
    if repeated:
        # The peers do not coalesce: for them this is the hot shard again.
        return found
    found["procrastinate"] = (PROCRASTINATE, slow)
    if not hot:
        found["procrastinate, 10 at once"] = (PROCRASTINATE_10, slow)
    found["pgqueuer, batch 100, unordered"] = (PGQUEUER, shape)
    found["reliable-outbox"] = (RELIABLE, slow.at_most(_HOT_KEY) if hot else slow)
    return found


def measure(*, runs: int, quick: bool) -> Results:
    """Drain every shape with every engine."""
    results = Results("drain", runs)
    results.notes += [
        "Rates are compared, never times: slow engines have fewer messages (the last column).",
        "pgqueuer keeps no order per key, so its rates are for less work than the others do.",
        "With 10 objects every removed message counts; the peers do not coalesce.",
    ]
    if quick:
        extent = _Extent(runs, max(runs, 5), 3000, slow=150, waiting=100, with_peers=False)
    else:
        extent = _Extent(runs, max(runs, 9), 10_000, slow=500, waiting=500, with_peers=True)
    for shape in shapes.ALL:
        _measure_shape(results, shape.at_most(extent.messages), extent)
    _measure_overhead(results, extent)
    _measure_depth(results, turns=extent.turns)
    _measure_single(results, extent)
    _measure_waiting(results, extent)
    workers.measure(results, runs=runs)
    peers.drop_database()
    _compare(results)
    return results


def _measure_shape(results: Results, shape: Shape, extent: _Extent) -> None:
    engines = _engines(shape, extent.slow)
    candidates = {
        name: partial(engine.rate, own, handler_ms=0) for name, (engine, own) in engines.items()
    }
    for name, measured in alternate(
        candidates, runs=extent.runs, tell=lambda what: tell(f"{shape.name}: {what}")
    ).items():
        results.add(f"{shape.name}/{name}", measured, "messages/s", count=engines[name][1].count)


def _measure_overhead(results: Results, extent: _Extent) -> None:
    """Measure the engine and the raw loop in alternating runs.

    Their difference is smaller than the machine's drift over minutes.
    """
    for whole in (shapes.MANY_SHARDS, shapes.HOT_SHARD, shapes.SQUARE):
        shape = whole.at_most(extent.messages)
        measured = alternate(
            {"ours": partial(Ours().rate, shape), "raw loop": partial(RawLoop().rate, shape)},
            runs=extent.turns,
            tell=lambda what, s=shape: tell(f"{s.name}, by turns: {what}"),
        )
        for name, each in measured.items():
            results.add(f"{shape.name}, by turns/{name}", each, "messages/s", count=shape.count)


def _measure_depth(results: Results, *, turns: int) -> None:
    """Measure a message's cost in a shallow and a deep hot shard, alternating."""
    small, large = shapes.HOT_SHARD.at_most(1000), shapes.HOT_SHARD
    measured = alternate(
        {
            "1000": partial(Ours().rate, small),
            "10000": partial(Ours().rate, large),
        },
        runs=turns,
        tell=lambda what: tell(f"hot shard of {what}"),
    )
    for name, each in measured.items():
        results.add(f"hot shard of {name}/ours", each, "messages/s", count=int(name))


def _measure_single(results: Results, extent: _Extent) -> None:
    """Measure one acknowledgement per message, on one hot shard."""
    shape, slow = shapes.HOT_SHARD.at_most(3000), shapes.HOT_SHARD.at_most(extent.slow)
    engines: dict[str, tuple[Engine, Shape]] = {
        "ack=1": (Ours(Category.ACKNOWLEDGED), shape),
        "ack=1, durable": (DurableOurs(Category.ACKNOWLEDGED), shape),
        "atomic": (Ours(Category.ATOMIC), slow),
        "raw loop, ack=1": (RawLoop(ack=1), shape),
        "raw loop, ack=1, durable": (RawLoop(ack=1, durable=True), shape),
        "per message": (PerMessage(), slow),
    }
    candidates = {name: partial(e.rate, own, handler_ms=0) for name, (e, own) in engines.items()}
    for name, measured in alternate(
        candidates, runs=extent.runs, tell=lambda what: tell(f"each alone: {what}")
    ).items():
        results.add(f"each alone/{name}", measured, "messages/s", count=engines[name][1].count)


def _measure_waiting(results: Results, extent: _Extent) -> None:
    """Measure handlers that wait 1 ms.

    All engines get the same few messages, as most of the time is the handlers'.
    """
    for shape in shapes.ALL:
        repeated = shape.objects < shape.messages
        # With 10 objects there are only 10 calls, so all messages can be used.
        own = shape if repeated else shape.at_most(extent.waiting)
        engines: dict[str, tuple[Engine, Shape]] = {
            "ours": (Ours(), own),
            "raw loop": (RawLoop(), own),
            "per message": (PerMessage(), own),
        }
        if extent.with_peers and not repeated:
            engines["procrastinate"] = (PROCRASTINATE, own)
            engines["pgqueuer, batch 100, unordered"] = (PGQUEUER, own)
            engines["reliable-outbox"] = (RELIABLE, own.at_most(_HOT_KEY))
        candidates = {
            name: partial(engine.rate, each, handler_ms=1)
            for name, (engine, each) in engines.items()
        }
        for name, measured in alternate(
            candidates, runs=extent.runs, tell=lambda what, s=shape: tell(f"{s.name}, 1 ms: {what}")
        ).items():
            key = f"{shape.name}, 1 ms/{name}"
            results.add(key, measured, "messages/s", count=engines[name][1].count)
    results.notes.append(
        "With 1 ms handlers pgqueuer runs the handlers of a batch concurrently; the others run them one by one."
    )


def _compare(results: Results) -> None:
    def ratio(shape: str, other: str, *, least: float | None = None) -> None:
        ours, theirs = results.median(f"{shape}/ours"), results.median(f"{shape}/{other}")
        results.compare(
            f"{shape}/{other}", f"{shape}: ours over {other}", ours / theirs, least=least
        )

    ratio("100x100", "per message", least=150)
    ratio("10000x1", "per message", least=100)
    ratio("10000x1", "pgqueuer, batch 100, unordered", least=1.5)
    ratio("10000x1", "reliable-outbox", least=15)
    ratio("10000x1", "procrastinate", least=40)
    ratio("10000x1", "procrastinate, 10 at once")
    ratio("1x10000", "per message", least=150)
    ratio("1x10000", "procrastinate", least=100)
    ratio("1x10000", "reliable-outbox", least=50)
    ratio("1x10000", "pgqueuer, batch 100, unordered")
    ratio("1x10000 on 10", "per message", least=5)
    for other in ("procrastinate", "procrastinate, 10 at once", "reliable-outbox"):
        ratio("100x100", other)
    ratio("100x100", "pgqueuer, batch 100, unordered")
    cost = {d: 1 / results.median(f"hot shard of {d}/ours") for d in ("1000", "10000")}
    results.compare(
        "depth",
        "hot shard: cost of a message at 10,000 over at 1,000",
        cost["10000"] / cost["1000"],
        most=1.1,
    )
    alone = {n: results.median(f"each alone/{n}") for n in ("ack=1, durable", "ack=1", "atomic")}
    slow = results.median("each alone/per message")
    results.compare(
        "ack=1",
        "one durable acknowledgement a message over per message",
        alone["ack=1, durable"] / slow,
        least=8,
    )
    results.compare("ack=1, relaxed", "the same, flushed later", alone["ack=1"] / slow)
    results.compare("atomic", "atomic scope over per message", alone["atomic"] / slow)
    floor = results.median("each alone/raw loop, ack=1, durable")
    results.compare("ack=1, raw", "the same, the raw loop over per message", floor / slow)
    for shape in ("10000x1", "1x10000", "100x100"):
        ours, raw = (results.median(f"{shape}, by turns/{who}") for who in ("ours", "raw loop"))
        overhead = 1e6 / ours - 1e6 / raw
        results.compare(
            f"overhead {shape}", f"{shape}: µs a message beyond the raw loop", overhead, most=12
        )
    for shape in shapes.ALL:
        ratio(f"{shape.name}, 1 ms", "per message")
    workers.compare(results)
