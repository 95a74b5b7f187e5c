-- Leases: claimed, renewed, marked, given back.

-- name: claim_due
-- Leases are inserted in key order, the one global order of locks (rule 6).
{due}
INSERT INTO {lease} ({key}, owner, token, until)
SELECT {key}, %(owner)s, %(token)s, clock_timestamp() + make_interval(secs => %(lease)s)
  FROM due ORDER BY {key}
    ON CONFLICT DO NOTHING
RETURNING {shard}

-- name: claim_known
-- The same for shards whose keys are known: a flush, a direct drain, or one that goes ahead. A
-- lease that is there is a conflict; to look for it first would only cost a probe more.
INSERT INTO {lease} ({key}, owner, token, until)
SELECT {k_key}, %(owner)s, %(token)s, clock_timestamp() + make_interval(secs => %(lease)s)
  FROM {keys}
 WHERE NOT EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) AND {keeps})
 ORDER BY {k_key}
    ON CONFLICT DO NOTHING
RETURNING {shard}

-- name: claim_suspect
-- One shard whose last drainer vanished (rule 8). A tiny table: read whole.
WITH c AS (
    SELECT {l_key} FROM {lease} l
     WHERE l.until <= clock_timestamp()
       AND (l.handling IS NOT NULL OR EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({l_key})))
       AND (%(only)s::text[] IS NULL OR ({l_key_text}) = ANY(%(only)s))
       AND NOT ({l_key_text}) = ANY(%(off)s::text[])
       AND l.shard_scope <> ALL(%(off_scopes)s::integer[]) AND {l_cell_on}
       AND (NOT %(heed)s OR l.handling IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM {failure} f WHERE ({f_key}) = ({l_key})
               AND f.level = {shard_level} AND f.scheduled_for > clock_timestamp()))
     ORDER BY l.until LIMIT 1 FOR UPDATE OF l SKIP LOCKED
)
UPDATE {lease} l
   SET owner = %(owner)s, token = %(token)s, suspect = true,
       until = clock_timestamp() + make_interval(secs => %(lease)s)
  FROM c WHERE ({l_key}) = ({c_key})
RETURNING {l_shard}, l.handling

-- name: find_suspect
-- The shards whose last drainer vanished, without claiming one.
SELECT {l_shard} FROM {lease} l
 WHERE l.until <= clock_timestamp()
   AND (l.handling IS NOT NULL OR EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({l_key})))
 ORDER BY l.until LIMIT %(most)s

-- name: claim_crashed
-- One shard of a group whose last failure was a crash, once it is due: always tried alone. From the
-- failures on: as a join it may begin with the whole outbox.
INSERT INTO {lease} ({key}, owner, token, until, suspect)
SELECT DISTINCT {f_key}, %(owner)s, %(token)s::bigint, clock_timestamp() + make_interval(secs => %(lease)s), true
  FROM (SELECT {f_key} FROM {failure} f
         WHERE f.crashed AND (f.scheduled_for <= clock_timestamp() OR NOT %(heed)s)
           AND EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({f_key}) OFFSET 0)
           AND NOT EXISTS (SELECT 1 FROM {lease} l WHERE ({l_key}) = ({f_key}))
           AND (%(only)s::text[] IS NULL OR ({f_key_text}) = ANY(%(only)s))
           AND NOT ({f_key_text}) = ANY(%(off)s::text[])
           AND f.shard_scope <> ALL(%(off_scopes)s::integer[]) AND {f_cell_on}
           AND (NOT %(heed)s OR NOT EXISTS (SELECT 1 FROM {failure} s WHERE ({s_key}) = ({f_key})
                             AND s.level = {shard_level} AND s.scheduled_for > clock_timestamp()))
         LIMIT 1) f
    ON CONFLICT DO NOTHING
RETURNING {shard}

-- name: release
-- Fenced by the token: a worker that was stalled past its lease releases nothing of its successor.
-- The keys are one, or all that are left of the claim, so their columns may be asked for each by
-- itself. Joined with the keys, a lease for which the statistics expect one row a token would be
-- compared with each of them.
DELETE FROM {lease} l WHERE {l_of_keys} AND l.token = %(token)s

-- name: renew
UPDATE {lease} SET until = clock_timestamp() + make_interval(secs => %(lease)s)
 WHERE token = ANY(%(tokens)s) RETURNING token, {shard}

-- name: mark
UPDATE {lease} l SET handling = %(handling)s FROM unnest({arrays}) k({key})
 WHERE ({l_key}) = ({k_key}) AND l.token = %(token)s
RETURNING 1

-- name: fence
-- Atomic scopes: last in the handler's transaction, so that a renewal is never blocked for long.
SELECT now() FROM {lease} l JOIN unnest({arrays}) k({key}) ON ({l_key}) = ({k_key})
 WHERE l.token = %(token)s FOR UPDATE OF l
