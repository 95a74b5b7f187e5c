"""The limits of the database: hand-written SQL on a bare connection.

There are no failures, no fairness, no switches and no renewal of leases. The raw
loop does only what every engine must do: claim, read, group, call, acknowledge.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import psycopg
from django.dispatch import Signal

from hybridcloud.outbox.drain.limits import LIMITS
from tests.benchmarks import world
from tests.benchmarks.engines import OUTBOX, Ours, _check, handler
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from tests.benchmarks.shapes import Shape

_SHARDS = LIMITS.shards_per_pass
_MESSAGES = LIMITS.messages_per_pass
_ACK = 100
_PINS = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"
_CLAIM = f"""
WITH RECURSIVE k AS (
    (SELECT shard_scope, shard_identifier FROM {OUTBOX}
      WHERE (shard_scope, shard_identifier) > (%s, %s) ORDER BY 1, 2 LIMIT 1)
    UNION ALL
    SELECT n.* FROM k CROSS JOIN LATERAL
        (SELECT shard_scope, shard_identifier FROM {OUTBOX} o
          WHERE (o.shard_scope, o.shard_identifier) > (k.shard_scope, k.shard_identifier)
          ORDER BY 1, 2 LIMIT 1) n
), due AS (SELECT * FROM k LIMIT {_SHARDS})
INSERT INTO hybridcloud_celllease (shard_scope, shard_identifier, owner, token, until)
SELECT shard_scope, shard_identifier, 'floor', 1, clock_timestamp() + interval '15 s'
  FROM due ORDER BY 1, 2 ON CONFLICT DO NOTHING
RETURNING shard_scope, shard_identifier
"""
_FETCH = f"""
SELECT k.n, m.id, m.category, m.object_identifier, m.payload::text
  FROM unnest(%s::integer[], %s::bigint[]) WITH ORDINALITY k(s, i, n)
 CROSS JOIN LATERAL (SELECT * FROM {OUTBOX} o WHERE (o.shard_scope, o.shard_identifier) = (k.s, k.i)
                      ORDER BY o.id LIMIT %s) m
"""
_ACKNOWLEDGE_DURABLY = f"DELETE FROM {OUTBOX} WHERE id = ANY(%s)"
_ACKNOWLEDGE = f"""
WITH r AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) v)
DELETE FROM {OUTBOX} USING r WHERE id = ANY(%s) AND r.v IS NOT NULL
"""
_RELEASE = """
DELETE FROM hybridcloud_celllease l USING unnest(%s::integer[], %s::bigint[]) k(s, i)
 WHERE (l.shard_scope, l.shard_identifier) = (k.s, k.i) AND l.token = 1
"""


class RawLoop:
    """The statements of a pass and one signal per group, and nothing else."""

    def __init__(self, *, ack: int = _ACK, durable: bool = False) -> None:
        self.ack = ack
        self._acknowledge = _ACKNOWLEDGE_DURABLY if durable else _ACKNOWLEDGE

    def rate(self, shape: Shape, *, handler_ms: float = 0) -> float:
        Ours().fill(shape)
        calls = [0]
        signal = Signal()
        signal.connect(handler(handler_ms, calls), sender=1, weak=False)
        with psycopg.connect(world.dsn(US), autocommit=True) as connection:
            connection.execute(_PINS)
            begin = time.perf_counter()
            self._drain(connection, signal)
            seconds = time.perf_counter() - begin
        _check("raw loop", calls[0], shape.calls_in_passes_of(_MESSAGES), OUTBOX)
        return shape.count / seconds

    def _drain(self, connection: psycopg.Connection[Any], signal: Signal) -> None:
        cursor = (-1, 0)
        while True:
            claimed = connection.execute(_CLAIM, cursor).fetchall()
            if not claimed:
                if cursor == (-1, 0):
                    return
                cursor = (-1, 0)
                continue
            claimed.sort()
            cursor = claimed[-1] if len(claimed) == _SHARDS else (-1, 0)
            self._pass(connection, signal, claimed)

    def _pass(
        self, connection: psycopg.Connection[Any], signal: Signal, claimed: list[tuple[int, int]]
    ) -> None:
        scopes, shards = [s for s, _ in claimed], [i for _, i in claimed]
        share = max(20, _MESSAGES // len(claimed))
        rows = connection.execute(_FETCH, (scopes, shards, share)).fetchall()
        groups: dict[tuple[int, int, int], list[Any]] = {}
        for n, identifier, category, each, payload in rows:
            group = groups.setdefault((n, category, each), [[], None])
            group[0].append(identifier)
            group[1] = payload
        ids: list[int] = []
        for (n, _, each), (own, payload) in groups.items():
            scope, shard = claimed[n - 1]
            signal.send(
                sender=1,
                payload=json.loads(payload),
                object_identifier=each,
                shard_identifier=shard,
                shard_scope=scope,
            )
            ids += own
            if len(ids) >= self.ack:
                connection.execute(self._acknowledge, (sorted(ids),))
                ids = []
        if ids:
            connection.execute(self._acknowledge, (sorted(ids),))
        connection.execute(_RELEASE, (scopes, shards))


class ExactDeletes:
    """Only reads ids and deletes exactly these, durably, in slices."""

    def __init__(self, *, each: int) -> None:
        self.each = each

    def rate(self, shape: Shape, *, handler_ms: float = 0) -> float:
        del handler_ms
        Ours().fill(shape)
        with psycopg.connect(world.dsn(US), autocommit=True) as connection:
            begin = time.perf_counter()
            rows = connection.execute(f"SELECT id FROM {OUTBOX} ORDER BY id").fetchall()
            ids = [row[0] for row in rows]
            for start in range(0, len(ids), self.each):
                connection.execute(
                    f"DELETE FROM {OUTBOX} WHERE id = ANY(%s)", (ids[start : start + self.each],)
                )
            return len(ids) / (time.perf_counter() - begin)
