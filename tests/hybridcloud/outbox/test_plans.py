"""The engine's statements read as little as they need, whatever the statistics say.

Autovacuum looks at a queue at any moment: while it is empty, while it is full of
one hot shard, while all leases are of one claim. So each statement runs on the
same rows with statistics of such moments, and may not read more than with
statistics of these rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from hybridcloud.outbox import CellOutbox, ControlOutbox
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import _PINS, Engine
from hybridcloud.outbox.store.templates import fragments, statements

from .engine import US, Kind, Lane
from .show_sql import ready

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("committed")

SCOPE, CATEGORY = int(Lane.ORDERED), int(Kind.ORDERED)
LATER: Final = "now() + interval '1 h'"
BEFORE: Final = "now() - interval '1 h'"
GROUP: Final = {
    "shard_scope": SCOPE,
    "shard_identifier": "n % 300 + 1",
    "category": CATEGORY,
    "object_identifier": "n",
}
ROWS: Final[dict[str, dict[str, Any]]] = {
    "outbox": {**GROUP, "scheduled_for": "now()", "date_added": "now()"},
    "parked": {
        **GROUP,
        "shard_identifier": "1000 + n",
        "id": "1000000 + n",
        "reason": "'held'",
        "scheduled_from": "now()",
        "scheduled_for": LATER,
        "date_added": "now()",
    },
    "lease": {
        "shard_scope": SCOPE,
        "shard_identifier": "1000 + n",
        "owner": "'somebody'",
        "token": "n % 10",
        "until": LATER,
    },
    "failure": {
        **GROUP,
        "shard_identifier": "1000 + n",
        "level": 2,
        "message_id": "n",
        "attempts": 1,
        "scheduled_for": LATER,
        "crashed": False,
        "last_error": "''",
        "last_traceback": "''",
    },
}
"""What there is, as expressions of the row's number: 300 shards to drain, and much that is of others."""
COUNTS: Final = {"outbox": 12_000, "parked": 3000, "lease": 3000, "failure": 3000}


@dataclass(frozen=True)
class Moment:
    """What a table was full of when it was analyzed.

    Attributes:
        count: how many rows.
        columns: in what they differed from `ROWS`.
    """

    count: int
    columns: dict[str, Any]


HOT: Final = {"shard_identifier": 7}
EACH: Final = {"shard_identifier": "n"}
MOMENTS: Final[dict[str, dict[str, Moment]]] = {
    "outbox": {
        "one hot shard": Moment(5000, HOT),
        "one hot object": Moment(5000, {**HOT, "object_identifier": 1}),
        "one object of each shard": Moment(5000, {**EACH, "object_identifier": 1}),
        "one message": Moment(1, EACH),
        "many scopes": Moment(5000, {"shard_scope": "n", "shard_identifier": 1}),
    },
    "parked": {
        "one hot shard": Moment(5000, HOT),
        "dead ones of one object": Moment(
            5000, {**HOT, "object_identifier": 1, "reason": "'dead'"}
        ),
        "delayed ones": Moment(5000, {**EACH, "reason": "'delayed'", "scheduled_for": BEFORE}),
        "one message": Moment(1, EACH),
    },
    "lease": {
        "one claim": Moment(5000, {**EACH, "token": 1}),
        "a claim for each": Moment(5000, {**EACH, "token": "n"}),
        "lapsed ones": Moment(5000, {**EACH, "until": BEFORE}),
    },
    "failure": {
        "shards in backoff": Moment(5000, {**EACH, "level": 0}),
        "objects of one shard": Moment(5000, HOT),
        "shards whose crash is due": Moment(
            5000, {**EACH, "level": 0, "scheduled_for": BEFORE, "crashed": True}
        ),
        "crashed objects of one shard": Moment(
            5000, {**HOT, "scheduled_for": BEFORE, "crashed": True}
        ),
        "one failure": Moment(1, EACH),
    },
}
# One reads no rows; the other is several statements, and reads the leases that are left.
NOT_ASKED: Final = {"lease_bytes", "rewrite_leases"}
KINDS: Final = {
    "record_failure": [{"conflict": "{key}, category, object_identifier", "level": "2"}],
    "bring_back": [
        {"switched": "false", "which": fragments()[which]}
        for which in (
            "delayed",
            "unknown",
            "held",
            "freed_category",
            "freed_object",
            "requeued",
        )
    ],
    "find_dead": [{"which": "true"}],
}


class Bench:
    """The tables of one outbox, and what statements read of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._control = "cell_name" in engine.tables.sharding_columns

    def execute(self, text: str, params: dict[str, Any] | None = None) -> list[Any]:
        with self.engine.connection.cursor() as cursor:
            cursor.execute(text, params)
            return cursor.fetchall() if cursor.description else []

    def _insert(self, table: str, count: int, columns: dict[str, Any]) -> None:
        columns = {**({"cell_name": "'us'"} if self._control else {}), **columns}
        self.execute(
            f"INSERT INTO {getattr(self.engine.tables, table)} ({', '.join(columns)})"
            f" SELECT {', '.join(map(str, columns.values()))} FROM generate_series(1, {count}) n"
        )

    def fill(self, table: str, moment: Moment | None = None) -> None:
        """Fill a table, with statistics of another moment or of these rows."""
        name = getattr(self.engine.tables, table)
        self.execute(f"TRUNCATE {name}")
        if moment:
            self._insert(table, moment.count, {**ROWS[table], **moment.columns})
            self.execute(f"ANALYZE {name}")
            self.execute(f"TRUNCATE {name}")
        self._insert(table, COUNTS[table], ROWS[table])
        self.execute(f"VACUUM {'' if moment else '(ANALYZE)'} {name}")

    def reads(self) -> dict[tuple[str, int], int]:
        """Return the blocks that each statement reads, for one shard and for many."""
        found = {}
        for name, count in product(self._names(), (1, 100)):
            params = self._params(count)
            for number, words in enumerate(KINDS.get(name, [{}])):
                text = self.engine.sql(name, one=count == 1, **words)
                found[f"{name} {number}", count] = self._blocks(text, params)
        return found

    def _names(self) -> Iterator[str]:
        assert set(statements()) >= NOT_ASKED
        for name in statements():
            if name not in NOT_ASKED and (self._control or name != "cells"):
                yield name

    def _blocks(self, text: str, params: dict[str, Any]) -> int:
        self.execute(f"BEGIN; {_PINS}")
        ((plan,),) = self.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", params)
        self.execute("ROLLBACK")
        (root,) = json.loads(plan) if isinstance(plan, str) else plan
        return int(root["Plan"]["Shared Hit Blocks"] + root["Plan"]["Shared Read Blocks"])

    def _params(self, count: int) -> dict[str, Any]:
        ((first,),) = self.execute(f"SELECT min(id) FROM {self.engine.tables.outbox}")
        ids = list(range(first, first + count))
        own = {
            "categories": [CATEGORY] * count,
            "objects": list(range(1, count + 1)),
            "ns": list(range(count)),
            "afters": [0] * count,
            **self.engine.keys(
                [ShardKey(SCOPE, each, *["us"] * self._control) for each in range(1, count + 1)]
            ),
        }
        bounds = {"after": first, "first": first + 100, "bound": 10**12, "passed": first}
        lists = {"ids": ids, "park_ids": ids, "parked_ids": ids, "failure_ids": ids, "tokens": [77]}
        switches: dict[str, Any] = {
            "off": [],
            "off_scopes": [],
            "off_cells": [],
            "off_lanes": [],
            "only": None,
        }
        switches |= {"off_shard_scopes": [], "off_shards": []}
        claim = {"owner": "me", "token": 77, "lease": 15, "handling": 1, "heed": True, "most": 256}
        cursor = {"cell": "us", "scope": -1, "identifier": 0}
        failure = {"level": 2, "category": CATEGORY, "object": 1, "message_id": 1, "attempts": 1}
        failure |= {"crashed": False, "error": "", "traceback": "", "delay_s": 1.0}
        park = {"not_finished": "x", "delay": None, "reason": "held", "park_error": None}
        back = {"delayed_too": False, "known": [1], "ordered": [SCOPE]}
        return {
            **own,
            **bounds,
            **lists,
            **switches,
            **claim,
            **cursor,
            **failure,
            **park,
            **back,
        }


SIDES: Final = pytest.mark.parametrize(
    ("outbox", "alias"), [(CellOutbox, US), (ControlOutbox, "control")], ids=["cell", "control"]
)
# What drainers ask of all shards, of all leases, of all that is parked.
OF_ALL: Final = {
    *("find_due", "claim_due", "depths", "depths_by_category", "ahead", "behind"),
    *("claim_suspect", "find_suspect", "renew", "stale", "sweep_leases", "sweep_failures"),
    *("any_parked", "next_delayed", "find_dead", "forget_attempts"),
}
DELAYED, UNKNOWN, HELD, FREED_CATEGORY = range(4)


@SIDES
def test_what_is_asked_of_one_shard_reads_its_rows_once_and_none_of_others(
    outbox: Any, alias: str
) -> None:
    bench = Bench(Engine(outbox, alias))
    for each in ROWS:
        bench.fill(each)
    of_all = {f"{name} 0" for name in OF_ALL}
    of_all |= {f"bring_back {kind}" for kind in (DELAYED, UNKNOWN, HELD, FREED_CATEGORY)}
    reads = {name: blocks for (name, count), blocks in bench.reads().items() if count == 1}
    assert of_all <= set(reads)
    depth = COUNTS["outbox"] // 300
    assert {k: v for k, v in reads.items() if k not in of_all and v > depth + 20} == {}


@pytest.mark.parametrize("table", ROWS)
@SIDES
def test_statements_read_no_more_with_statistics_of_another_moment(
    outbox: Any, alias: str, table: str
) -> None:
    bench = Bench(Engine(outbox, alias))
    for each in ROWS:
        bench.fill(each)
    fresh = bench.reads()
    worse = {}
    for name, moment in MOMENTS[table].items():
        bench.fill(table, moment)
        for (statement, count), blocks in bench.reads().items():
            # Two blocks for each key more: by an index, where fresh statistics find a small table cheaper.
            if blocks > 1.5 * fresh[statement, count] + 2 * count + 20:
                worse[name, statement, count] = (fresh[statement, count], blocks)
    assert worse == {}


PRINTED: Final = [
    (control, name)
    for control in (False, True)
    for name in sorted(statements())
    # The one is several statements, which EXPLAIN does not take; the other is of control alone.
    if name != "rewrite_leases" and (control or name != "cells")
]


@pytest.mark.parametrize(("control", "name"), PRINTED)
def test_a_statement_is_printed_ready_for_explain(*, control: bool, name: str) -> None:
    """As `make sql` prints it: the database plans it as it is."""
    engine = Engine(ControlOutbox, "control") if control else Engine(CellOutbox, US)
    with engine.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {ready(name, control=control)}".replace("%", "%%"), ())
        assert cursor.fetchall()
