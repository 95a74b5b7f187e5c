"""Measures the live traffic that a backfill must leave room for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridcloud.outbox.drain.due import find_due_shards
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.tables import outbox_models
from silos.router import alias_for_model

if TYPE_CHECKING:
    from hybridcloud.outbox.store.tables import OutboxTable
    from silos import SiloMode

_MOST_SHARDS: Final = 1000
# Dead and unknown messages, and those that are not due, are left out: no drainer will handle them.
_WAITING: Final = """
SELECT (SELECT count(*) FROM (SELECT 1 FROM {outbox} LIMIT %(most)s) t)
     + (SELECT count(*) FROM (SELECT 1 FROM {parked} p WHERE p.reason = 'held' OR (p.reason = 'delayed'
                                AND p.scheduled_for <= clock_timestamp()) LIMIT %(most)s) t)"""
_OLDEST: Final = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - o.due)), 0)::float8
  FROM (SELECT * FROM unnest({arrays}) k({key})
         UNION SELECT {l_key} FROM {lease} l WHERE l.until > clock_timestamp()) k
 CROSS JOIN LATERAL (SELECT greatest(o.date_added, o.scheduled_for) AS due FROM {outbox} o
                      WHERE ({o_key}) = ({k_key}) ORDER BY o.id LIMIT 1) o"""


def count_waiting(mode: SiloMode, *, most: int) -> int:
    """Return how many messages wait in a silo's outboxes, held ones included.

    Args:
        mode: the silo.
        most: the bound up to which each table is counted.
    """
    return sum(_count(outbox, most) for outbox in outbox_models(mode))


def measure_lag(mode: SiloMode) -> float:
    """Return how many seconds the oldest message that could run has waited.

    Shards that are in backoff, switched off, or of a cell that is down are left
    out: their messages do not wait for capacity.
    """
    return max((_lag(outbox) for outbox in outbox_models(mode)), default=0.0)


def _count(outbox: type[OutboxTable], most: int) -> int:
    engine = Engine(outbox, alias_for_model(outbox))
    text = _WAITING.format(outbox=engine.tables.outbox, parked=engine.tables.parked)
    with engine.connection.cursor() as sql:
        sql.execute(text, {"most": most})
        (count,) = sql.fetchone()
    return int(count)


def _lag(outbox: type[OutboxTable]) -> float:
    alias = alias_for_model(outbox)
    engine = Engine(outbox, alias)
    keys = engine.keys(find_due_shards(outbox, alias=alias, limit=_MOST_SHARDS))
    columns = engine.tables.sharding_columns
    types = {"cell_name": "text", "shard_scope": "integer", "shard_identifier": "bigint"}
    text = _OLDEST.format(
        outbox=engine.tables.outbox,
        lease=engine.tables.lease,
        key=", ".join(columns),
        arrays=", ".join(f"%(key_{column})s::{types[column]}[]" for column in columns),
        **{f"{a}_key": ", ".join(f"{a}.{column}" for column in columns) for a in "olk"},
    )
    with engine.connection.cursor() as sql:
        sql.execute(text, keys)
        (lag,) = sql.fetchone()
    return float(lag)
