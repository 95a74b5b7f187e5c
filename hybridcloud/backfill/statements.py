"""The SQL of backfills.

Times are the database's. `GO` admits a batch by compare-and-set, `ADVANCE` moves
the position past the batch, and `_BATCH` is both around one INSERT, so that the
messages and the position cannot diverge.
"""
# ruff: noqa: S608 - names come from models, values are parameters

from __future__ import annotations

from typing import Final

_SECOND: Final = "floor(extract(epoch FROM clock_timestamp()))::bigint"
# Messages of the last minute: the rate is measured, not guessed.
_USED: Final = f"""(SELECT coalesce(sum(r.value::bigint), 0)::bigint
    FROM jsonb_each_text(c.recent) r WHERE r.key::bigint >= {_SECOND} - 60)"""
COLUMNS: Final = f"""c."table", c.low_bound, c.version, c.started, c.upto, c.writers::text,
    c.row_count, c.message_count, c.rows_expected, {_USED}, c.began_at, c.done_at, c.updated_at"""
READ: Final = f'SELECT {COLUMNS} FROM hybridcloud_backfillcursor c WHERE c."table" = ANY(%s)'
# Compare-and-set: since this cursor was read, no other process has moved it or written messages that
# the rate must count. Cursors are locked in the order of their names, so batches wait for each other
# but never deadlock.
GO: Final = f"""locked AS MATERIALIZED (
    SELECT * FROM hybridcloud_backfillcursor c WHERE c."table" = ANY(%(tables)s)
     ORDER BY c."table" FOR UPDATE
), go AS MATERIALIZED (
    SELECT 1 FROM locked c
     WHERE c."table" = %(table)s AND c.version = %(version)s AND c.low_bound = %(low)s
       AND c.started = %(started)s AND c.upto = %(upto)s
       AND (%(used)s::bigint IS NULL OR (SELECT sum({_USED}) FROM locked c) <= %(used)s)
)"""
IS_GO: Final = f"WITH {GO} SELECT 1 FROM go"
_ADVANCE: Final = f"""UPDATE hybridcloud_backfillcursor c
   SET low_bound = CASE WHEN b.done THEN 0 ELSE b.up + 1 END,
       version = CASE WHEN b.done THEN c.version + 1 ELSE c.version END,
       started = NOT b.done,
       upto = CASE WHEN b.done THEN NULL ELSE c.upto END,
       writers = CASE WHEN b.done THEN NULL ELSE c.writers END,
       done_at = CASE WHEN b.done THEN clock_timestamp() END,
       row_count = c.row_count + b.row_count,
       message_count = c.message_count + b.message_count,
       updated_at = clock_timestamp(),
       recent = (SELECT coalesce(jsonb_object_agg(r.key, r.value), '{{}}')
                   FROM jsonb_each(c.recent) r WHERE r.key::bigint >= {_SECOND} - 60)
                || jsonb_build_object({_SECOND}::text, b.message_count
                       + coalesce((c.recent->>({_SECOND}::text))::bigint, 0))
  FROM (SELECT b.*, b.row_count < %(most)s OR b.up >= %(upto)s AS done
          FROM (SELECT {{numbers}}) b) b
 WHERE c."table" = %(table)s AND {{gate}}
RETURNING b.row_count, b.message_count, b.low, b.up, {COLUMNS}"""
ADVANCE: Final = _ADVANCE.replace("{gate}", "true").replace(
    "{numbers}",
    """%(row_count)s::bigint AS row_count, %(message_count)s::bigint AS message_count,
       %(least)s::bigint AS low, %(last)s::bigint AS up""",
)
_ADVANCE_BY_BATCH: Final = _ADVANCE.replace("{gate}", "EXISTS (SELECT 1 FROM go)").replace(
    "{numbers}",
    """count(*) AS row_count, count(*) AS message_count, min(object_identifier) AS low,
       max(object_identifier) AS up FROM batch""",
)
# The rows come from the primary key's index; message ids are drawn in the order of the rows.
_BATCH: Final = f"""WITH {GO}, batch AS MATERIALIZED (
    SELECT t.{{pk}} AS object_identifier, t.{{shard}} AS shard_identifier FROM {{table}} t
     WHERE t.{{pk}} BETWEEN %(from)s::bigint AND %(upto)s::bigint AND EXISTS (SELECT 1 FROM go)
     ORDER BY t.{{pk}} LIMIT %(most)s
), written AS (
    INSERT INTO {{outbox}} (shard_scope, shard_identifier, category, object_identifier, headers)
    SELECT %(scope)s::integer, shard_identifier, %(category)s::integer, object_identifier,
           %(headers)s::jsonb
      FROM batch ORDER BY object_identifier
), advanced AS ({{advance}})
SELECT * FROM advanced"""
# An estimate, for tables that take long to count; that of a new table is -1.
ESTIMATE: Final = """SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM pg_class c
 WHERE c.oid = %(table)s::regclass
    OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass) WHERE isleaf)"""


def batch(*, table: str, pk: str, shard: str, outbox: str) -> str:
    """Return the statement of a whole batch; all names are quoted."""
    words = {"table": table, "pk": pk, "shard": shard, "outbox": outbox}
    text = _BATCH.replace("{advance}", _ADVANCE_BY_BATCH)
    for word, name in words.items():
        text = text.replace(f"{{{word}}}", name)
    return text


def count_up_to(table: str, most: int) -> str:
    """Return the statement that counts rows up to a bound; the name is quoted."""
    return f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {most}) t"
