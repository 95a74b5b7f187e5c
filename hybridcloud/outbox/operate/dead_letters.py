"""Finds dead letters, requeues and purges them.

A dead letter is a parked message with the reason ``dead``. In scopes that coalesce, a newer
message about the same object replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.deliver.kick import kick
from hybridcloud.outbox.drain.settle import NOT_FINISHED
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine, engine_cursor
from hybridcloud.outbox.store.templates import fragments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from hybridcloud.outbox.store.tables import OutboxTable

_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Which:
    """Which dead letters are meant; None in a field means all.

    Scope and category are numbers, ``older_than_s`` is the least age since they were dead-lettered; ``cell`` is for
    control messages.
    """

    ids: tuple[int, ...] | None = None
    scope: int | None = None
    shard: int | None = None
    cell: str | None = None
    category: int | None = None
    object_identifier: int | None = None
    older_than_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead-lettered message: ``parked_at`` is when, ``error`` is why."""

    id: int
    shard: tuple[Any, ...]
    category: int
    object_identifier: int
    error: str | None
    date_added: datetime
    parked_at: datetime


def find(outbox: type[OutboxTable], alias: str, which: Which, *, limit: int) -> list[DeadLetter]:
    """Return dead letters of an outbox table, the oldest first."""
    engine = Engine(outbox, alias)
    tests, params = _tests(engine, which)
    text = engine.sql("find_dead", which=" AND ".join(tests))
    with engine_cursor(engine.connection) as sql:
        sql.execute(text, {**params, "most": limit, "not_finished": NOT_FINISHED})
        rows = sql.fetchall()
    width = len(engine.tables.sharding_columns)
    return [
        DeadLetter(row[0], ShardKey(*row[1 : 1 + width]).columns(), *row[1 + width :])
        for row in rows
    ]


def requeue(outbox: type[OutboxTable], alias: str, ids: Sequence[int]) -> int:
    """Put dead letters back into the outbox; return how many still existed.

    They keep their ids, and their attempts start again.
    """
    engine = Engine(outbox, alias)
    bring_back = engine.sql("bring_back", which=fragments()["requeued"])
    statements = [bring_back, engine.sql("forget_attempts")]
    moved = _moved(engine, statements, ids)
    if moved:
        # Their ids are low, so a drainer that looks for new ids would not see them.
        kick(outbox, alias)
    return moved


def purge(outbox: type[OutboxTable], alias: str, ids: Sequence[int]) -> int:
    """Delete dead letters for good; return how many still existed."""
    engine = Engine(outbox, alias)
    return _moved(engine, [engine.sql("purge_dead")], ids)


def _moved(engine: Engine, statements: Sequence[str], ids: Sequence[int]) -> int:
    """Run statements for messages, 1,000 a transaction; count the last's rows."""
    moved = 0
    for chunk in batched(sorted(set(ids)), _AT_ONCE):
        params = {"ids": list(chunk), "not_finished": NOT_FINISHED}
        moved += len(engine.results(statements, params)[-1])
    return moved


def _tests(engine: Engine, which: Which) -> tuple[list[str], dict[str, Any]]:
    columns = {
        "shard_scope": which.scope,
        "shard_identifier": which.shard,
        "category": which.category,
        "object_identifier": which.object_identifier,
        "cell_name": which.cell,
    }
    tests: list[str] = ["true"]
    params: dict[str, Any] = {}
    for column, value in columns.items():
        if value is None:
            continue
        if column == "cell_name" and column not in engine.tables.sharding_columns:
            tests.append("false")
            continue
        tests.append(f"p.{column} = %({column})s")
        params[column] = value
    if which.ids is not None:
        tests.append("p.id = ANY(%(ids)s)")
        params["ids"] = list(which.ids)
    if which.older_than_s is not None:
        tests.append("p.parked_at <= clock_timestamp() - make_interval(secs => %(age)s)")
        params["age"] = which.older_than_s
    return tests, params
