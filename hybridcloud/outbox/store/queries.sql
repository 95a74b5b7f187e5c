-- The statements of the engine. `statements.py` fills in the names of the tables and of the
-- sharding columns; {key} is those columns, {o_key} the same of the alias o, and so on.
-- Times are clock_timestamp(): now() stands still inside a transaction.

-- name: cells
-- The cells that control messages wait for: one probe of the shard index for each.
WITH RECURSIVE c AS (
    (SELECT cell_name FROM {outbox} ORDER BY cell_name LIMIT 1)
    UNION ALL
    SELECT n.cell_name FROM c CROSS JOIN LATERAL
        (SELECT o.cell_name FROM {outbox} o WHERE o.cell_name > c.cell_name
          ORDER BY o.cell_name LIMIT 1) n
)
SELECT cell_name FROM c

-- name: not_off
-- Left out where no switch is set, as nearly always: it is a tenth of a claim.
k.shard_scope <> ALL(%(off_scopes)s::integer[])
       AND (k.shard_scope, k.shard_identifier) NOT IN (
            SELECT * FROM unnest(%(off_shard_scopes)s::integer[], %(off_shards)s::bigint[]))
       AND

-- name: keeps
-- Which failures keep their shard from a claim: the whole waits for its next try, or a crash is due
-- again, whose shard is drained alone (claim_crashed).
(CASE WHEN f.scheduled_for > clock_timestamp() AND %(heed)s THEN f.level = 0 ELSE f.crashed END)

-- name: due
-- Shards that may be drained, from a cursor on: a loose scan of the shard index, one probe a
-- shard, however deep the shard. Its first entries are read as they come: where shards are
-- shallow, these are all that it takes. A lease row, live or expired, takes the shard out (an
-- expired one is for claim_suspect), and so does a failure that keeps it.
-- All conditions must filter what the walk yields: as a join (but for OFFSET) the shards would
-- come in the order of the join, and the limit step over some.
WITH RECURSIVE head AS (
    SELECT DISTINCT shard_scope, shard_identifier FROM (
        SELECT shard_scope, shard_identifier FROM {outbox}
         WHERE {in_cell}(shard_scope, shard_identifier) > (%(scope)s, %(identifier)s)
         ORDER BY shard_scope, shard_identifier LIMIT least(2 * %(most)s, 1024)) h
), k AS (
    SELECT shard_scope, shard_identifier,
           lead(1) OVER (ORDER BY shard_scope, shard_identifier) IS NULL AS is_last FROM head
    UNION ALL
    SELECT n.shard_scope, n.shard_identifier, true FROM k CROSS JOIN LATERAL
        (SELECT o.shard_scope, o.shard_identifier FROM {outbox} o
          WHERE {o_in_cell}(o.shard_scope, o.shard_identifier) > (k.shard_scope, k.shard_identifier)
          ORDER BY o.shard_scope, o.shard_identifier LIMIT 1) n
     WHERE k.is_last
), due AS (
    SELECT {cell_value}k.shard_scope, k.shard_identifier FROM k
     WHERE {not_off}NOT EXISTS (SELECT 1 FROM {lease} l
                        WHERE {l_in_cell}(l.shard_scope, l.shard_identifier) = (k.shard_scope, k.shard_identifier)
                       OFFSET 0)
       AND NOT EXISTS (SELECT 1 FROM {failure} f
                        WHERE {f_in_cell}(f.shard_scope, f.shard_identifier) = (k.shard_scope, k.shard_identifier)
                          AND {keeps})
     LIMIT %(most)s
)

-- name: find_due
{due}
SELECT {key} FROM due

-- name: claim_due
-- Leases are inserted in key order, the one global order of locks (rule 6).
{due}
INSERT INTO {lease} ({key}, owner, token, until)
SELECT {key}, %(owner)s, %(token)s, clock_timestamp() + make_interval(secs => %(lease)s)
  FROM due ORDER BY {key}
    ON CONFLICT DO NOTHING
RETURNING {key}

-- name: claim_known
-- The same for shards whose keys are known: a flush, a direct drain, or one that goes ahead. A
-- lease that is there is a conflict; to look for it first would only cost a probe more.
INSERT INTO {lease} ({key}, owner, token, until)
SELECT {k_key}, %(owner)s, %(token)s, clock_timestamp() + make_interval(secs => %(lease)s)
  FROM {keys}
 WHERE NOT EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) AND {keeps})
 ORDER BY {k_key}
    ON CONFLICT DO NOTHING
RETURNING {key}

-- name: claim_suspect
-- One shard whose last drainer vanished (rule 8). A tiny table: read whole.
WITH c AS (
    SELECT {l_key} FROM {lease} l
     WHERE l.until <= clock_timestamp()
       AND (l.handling IS NOT NULL OR EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({l_key})))
       AND ({only}::text[] IS NULL OR ({l_key_text}) = ANY({only}))
       AND NOT ({l_key_text}) = ANY(%(off)s::text[])
       AND l.shard_scope <> ALL(%(off_scopes)s::integer[]) AND {l_cell_on}
       AND (NOT %(heed)s OR l.handling IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM {failure} f WHERE ({f_key}) = ({l_key})
               AND f.level = 0 AND f.scheduled_for > clock_timestamp()))
     ORDER BY l.until LIMIT 1 FOR UPDATE OF l SKIP LOCKED
)
UPDATE {lease} l
   SET owner = %(owner)s, token = %(token)s, suspect = true,
       until = clock_timestamp() + make_interval(secs => %(lease)s)
  FROM c WHERE ({l_key}) = ({c_key})
RETURNING {l_key}, l.handling

-- name: claim_crashed
-- One shard of a group whose last failure was a crash, once it is due: always tried alone. From the
-- failures on: as a join it may begin with the whole outbox.
INSERT INTO {lease} ({key}, owner, token, until, suspect)
SELECT DISTINCT {f_key}, %(owner)s, %(token)s::bigint, clock_timestamp() + make_interval(secs => %(lease)s), true
  FROM (SELECT {f_key} FROM {failure} f
         WHERE f.crashed AND (f.scheduled_for <= clock_timestamp() OR NOT %(heed)s)
           AND EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({f_key}) OFFSET 0)
           AND NOT EXISTS (SELECT 1 FROM {lease} l WHERE ({l_key}) = ({f_key}))
           AND ({only}::text[] IS NULL OR ({f_key_text}) = ANY({only}))
           AND NOT ({f_key_text}) = ANY(%(off)s::text[])
           AND f.shard_scope <> ALL(%(off_scopes)s::integer[]) AND {f_cell_on}
           AND (NOT %(heed)s OR NOT EXISTS (SELECT 1 FROM {failure} s WHERE ({s_key}) = ({f_key})
                             AND s.level = 0 AND s.scheduled_for > clock_timestamp()))
         LIMIT 1) f
    ON CONFLICT DO NOTHING
RETURNING {key}

-- name: ahead
-- The oldest messages behind an id, whoever's: by the primary key, not by the shard index.
SELECT {key}, id FROM {outbox} WHERE {in_cell}id > %(passed)s ORDER BY id LIMIT %(most)s

-- name: behind
-- The same of those up to it, which were passed: the dead between them lie in the order of this walk.
SELECT {key}, id FROM {outbox} WHERE {in_cell}id <= %(passed)s ORDER BY id LIMIT %(most)s

-- name: fetch
-- Always a statement after the claim's, so that it sees what the last owner deleted (rule 1).
-- `afters`: where each shard's reading begins, 0 for its head.
-- `flagged`: the shard has parked messages or failures; whoever reads that reads them too. Looked for
-- once a shard: but for OFFSET both tables may be read whole, or asked again for each message.
-- In the order of the whole index and, of the key, the last column as a range, here and below: for
-- equality and ORDER BY id the primary key would do as well, and where statistics are of one hot
-- shard it is taken, and walked from end to end. Compared as rows, key and id would have
-- PostgreSQL 15, unlike 18, walk from the shard to the end of the index.
SELECT k.n, {o_message},
       x.flagged
  FROM unnest({arrays}, %(afters)s::bigint[]) WITH ORDINALITY k({key}, after, n)
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({k_key}) OFFSET 0)
                         OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) OFFSET 0) AS flagged
                      OFFSET 0) x
 CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                      WHERE {o_in_shard} AND o.id > k.after AND o.id <= %(bound)s
                      ORDER BY {o_key}, o.id LIMIT %(most)s) o

-- name: fetch_own
-- A sync flush in coalescing scopes: the groups of its own messages and nothing else.
SELECT k.n, {o_message},
       x.flagged
  FROM unnest({arrays}) WITH ORDINALITY k({key}, n)
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({k_key}) OFFSET 0)
                         OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) OFFSET 0) AS flagged
                      OFFSET 0) x
 CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                      WHERE {o_in_shard}
                        AND (o.category, o.object_identifier) IN
                            (SELECT * FROM unnest(%(categories)s::integer[], %(objects)s::bigint[]))
                      ORDER BY {o_key}, o.id LIMIT %(most)s) o

-- name: fetch_own_one
-- The same for one group of one shard, as most saves are: without joins, since planning is most of it.
SELECT 1::bigint AS n, {o_message},
       EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({one_key}))
           OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({one_key})) AS flagged
  FROM {outbox} o
 WHERE ({o_key}) = ({one_key})
   AND (o.category, o.object_identifier) = ((%(categories)s::integer[])[1], (%(objects)s::bigint[])[1])
 ORDER BY o.id LIMIT %(most)s

-- name: fetch_superseding
-- Behind what was read of a deep shard: of each object that was read the ids, and its newest message.
WITH m AS MATERIALIZED (
    SELECT o.id, o.category, o.object_identifier FROM unnest({arrays}) k({key})
     CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                          WHERE {o_in_shard} AND o.id > %(after)s AND o.id <= %(bound)s
                          ORDER BY {o_key}, o.id LIMIT %(most)s) o
), g AS (
    SELECT max(id) AS newest, array_agg(id) AS ids FROM m
     WHERE (category, object_identifier) IN
           (SELECT * FROM unnest(%(categories)s::integer[], %(objects)s::bigint[]))
     GROUP BY category, object_identifier
)
SELECT 1::bigint, {o_message},
       EXISTS (SELECT 1 FROM {parked} p JOIN unnest({arrays}) k({key}) ON ({p_key}) = ({k_key}))
           OR EXISTS (SELECT 1 FROM {failure} f JOIN unnest({arrays}) k({key}) ON ({f_key}) = ({k_key})),
       g.ids
  FROM g JOIN {outbox} o ON o.id = g.newest

-- name: parked_of_groups
SELECT g.n, p.id, p.category, p.object_identifier, p.reason
  FROM unnest({arrays}, %(categories)s::integer[], %(objects)s::bigint[], %(ns)s::bigint[])
       g({key}, category, object_identifier, n)
 CROSS JOIN LATERAL (SELECT * FROM {parked} p
                      WHERE ({p_key}, p.category) = ({g_key}, g.category)
                        AND p.object_identifier BETWEEN g.object_identifier AND g.object_identifier
                      ORDER BY {p_key}, p.category, p.object_identifier, p.id LIMIT 10000) p

-- name: failures_of_shards
SELECT k.n, f.id, f.level, f.category, f.object_identifier, f.message_id, f.attempts, f.crashed,
       f.scheduled_for > clock_timestamp()
  FROM unnest({arrays}) WITH ORDINALITY k({key}, n)
 CROSS JOIN LATERAL (SELECT * FROM {failure} f WHERE {f_in_shard} ORDER BY {f_key}) f

-- name: ack
-- Exact ids, never a range: a lower id may be committed later (rule 1).
DELETE FROM {outbox} WHERE id = ANY(%(ids)s)

-- name: ack_parked
DELETE FROM {parked} WHERE id = ANY(%(parked_ids)s)

-- name: forget_failures
DELETE FROM {failure} WHERE id = ANY(%(failure_ids)s)

-- name: release
-- Fenced by the token: a worker that was stalled past its lease releases nothing of its successor.
-- The keys are one, or all that are left of the claim, so their columns may be asked for each by
-- itself. Joined with the keys, a lease for which the statistics expect one row a token would be
-- compared with each of them.
DELETE FROM {lease} l WHERE {l_of_keys} AND l.token = %(token)s

-- name: mark
UPDATE {lease} l SET handling = %(handling)s FROM unnest({arrays}) k({key})
 WHERE ({l_key}) = ({k_key}) AND l.token = %(token)s
RETURNING 1

-- name: fence
-- Atomic scopes: last in the handler's transaction, so that a renewal is never blocked for long.
SELECT 1 FROM {lease} l JOIN unnest({arrays}) k({key}) ON ({l_key}) = ({k_key})
 WHERE l.token = %(token)s FOR UPDATE OF l

-- name: renew
UPDATE {lease} SET until = clock_timestamp() + make_interval(secs => %(lease)s)
 WHERE token = ANY(%(tokens)s) RETURNING token, {key}

-- name: record_failure
-- Fenced by the token. The delay is 1 s doubled at each attempt, at most 1 h, with jitter.
INSERT INTO {failure} AS f ({key}, level, category, object_identifier, message_id, attempts,
                            scheduled_from, scheduled_for, crashed, last_error, last_traceback)
SELECT {k_key}, %(level)s, %(category)s, %(object)s, %(message_id)s, %(attempts)s, clock_timestamp(),
       clock_timestamp() + make_interval(secs => least(3600, power(2, %(attempts)s - 1)) * (0.8 + 0.2 * random())),
       %(crashed)s, %(error)s, %(traceback)s
  FROM unnest({arrays}) k({key}) JOIN {lease} l ON ({l_key}) = ({k_key}) AND l.token = %(token)s
    ON CONFLICT ({conflict}) WHERE level = {level} DO UPDATE
   SET category = excluded.category, object_identifier = excluded.object_identifier,
       message_id = excluded.message_id, attempts = excluded.attempts,
       scheduled_from = excluded.scheduled_from, scheduled_for = excluded.scheduled_for,
       crashed = excluded.crashed, last_error = excluded.last_error,
       last_traceback = excluded.last_traceback, last_failure_at = clock_timestamp(),
       first_failure_at = CASE WHEN excluded.attempts = 1 THEN clock_timestamp() ELSE f.first_failure_at END

-- name: park
-- Moves messages out of the outbox with their ids and dates, in one statement.
WITH gone AS (
    DELETE FROM {outbox} WHERE id = ANY(%(park_ids)s)
    RETURNING id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for, date_added, headers
)
INSERT INTO {parked} (id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for,
                      date_added, headers, reason, error)
SELECT id, {key}, category, object_identifier, payload,
       CASE WHEN %(delay)s::float8 IS NULL THEN scheduled_from ELSE statement_timestamp() END,
       CASE WHEN %(delay)s::float8 IS NULL THEN scheduled_for
            ELSE statement_timestamp() + make_interval(secs => %(delay)s::float8) END,
       date_added, headers, %(reason)s, %(park_error)s
  FROM gone ORDER BY id
    ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: note_error
UPDATE {parked} SET error = %(park_error)s WHERE id = ANY(%(park_ids)s)

-- name: any_parked
-- Whether a mover has anything to look at; dead letters wait for people.
SELECT 1 FROM {parked} WHERE reason < 'dead' OR reason > 'dead' LIMIT 1

-- name: next_delayed
-- Seconds until the next delayed message is due.
SELECT extract(epoch FROM min(scheduled_for) - clock_timestamp())::float8 FROM {parked} WHERE reason = 'delayed'

-- name: bring_back
-- Moves parked messages to the outbox, oldest first, ids kept; {which} says which of them.
WITH due AS (
    SELECT p.id FROM {parked} p WHERE {which}
     ORDER BY p.id LIMIT 1000 FOR UPDATE OF p SKIP LOCKED
), gone AS (
    DELETE FROM {parked} p USING due WHERE p.id = due.id
    RETURNING p.id, {p_key}, p.category, p.object_identifier, p.payload, p.scheduled_from,
              p.scheduled_for, p.date_added, p.headers
)
INSERT INTO {outbox} (id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for,
                      date_added, headers) OVERRIDING SYSTEM VALUE
SELECT id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for, date_added, headers
  FROM gone ORDER BY id
RETURNING {key}

-- name: stale
SELECT EXISTS (SELECT 1 FROM {lease} l WHERE l.until <= clock_timestamp())
    OR EXISTS (SELECT 1 FROM {failure} f WHERE f.crashed AND f.scheduled_for <= clock_timestamp())

-- name: sweep_leases
-- What a lost drainer left of shards in which nothing waits; a mark is evidence and stays.
DELETE FROM {lease} l
 WHERE l.until <= clock_timestamp() AND l.handling IS NULL
   AND NOT EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({l_key}))

-- name: sweep_failures
-- Failures of messages that are gone: purged, or superseded while they were parked.
DELETE FROM {failure} f
 WHERE f.scheduled_for <= clock_timestamp()
   AND NOT EXISTS (SELECT 1 FROM {outbox} o WHERE ({o_key}) = ({f_key})
                      AND o.category = f.category AND o.object_identifier = f.object_identifier)
   AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({f_key}) AND p.category = f.category
                      AND p.object_identifier = f.object_identifier AND p.reason IN ('held', 'delayed'))

-- name: lease_bytes
SELECT pg_total_relation_size('{lease}'::regclass)

-- name: rewrite_leases
-- Leases come and go all the time, and under an old snapshot none of the dead can be cleaned away.
-- TRUNCATE asks no snapshot. At once or not at all: whoever holds the table is not waited for.
LOCK TABLE {lease} IN ACCESS EXCLUSIVE MODE NOWAIT;
CREATE TEMPORARY TABLE hybridcloud_live_leases ON COMMIT DROP AS TABLE {lease};
TRUNCATE {lease};
INSERT INTO {lease} TABLE hybridcloud_live_leases

-- name: own_left
-- The poll of a sync flush that waits: how many of these messages are still there, and whether
-- waiting is in vain: the shard is in backoff, its crash is due, or its drainer is lost.
SELECT (SELECT count(*) FROM {outbox} WHERE id = ANY(%(ids)s)),
       EXISTS (SELECT 1 FROM {failure} f WHERE {f_in_one} AND {keeps} ORDER BY {f_key} OFFSET 0)
       OR EXISTS (SELECT 1 FROM {lease} l
                   WHERE ({l_key}) = ({one_key}) AND (l.until <= clock_timestamp() OR l.suspect))

-- name: before
-- How many messages of a shard are before an id, counted up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM {outbox} o WHERE {o_in_one} AND o.id < %(first)s
     ORDER BY {o_key}, o.id LIMIT %(most)s) t

-- name: newest
SELECT max(id) FROM (SELECT o.id FROM {outbox} o WHERE {o_in_one} ORDER BY {o_key}, o.id) t

-- name: compact
-- Rule 5: all but the newest message of each object, of those that this statement sees.
DELETE FROM {outbox} WHERE id IN (
    SELECT id FROM (
        SELECT o.id, row_number() OVER (PARTITION BY o.category, o.object_identifier ORDER BY o.id DESC) AS age
          FROM unnest({arrays}) k({key})
         CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                              WHERE {o_in_shard} ORDER BY {o_key}, o.id) o) t
     WHERE t.age > 1)

-- name: depths
SELECT {key}, count(*) AS depth FROM (
    SELECT {key} FROM {outbox} UNION ALL SELECT {key} FROM {parked}) m
 GROUP BY {key} ORDER BY depth DESC, {key} LIMIT %(most)s
