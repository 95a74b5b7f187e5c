-- Parts of statements. Each may use those above it; {key} is the sharding columns in the order of
-- the index, {shard} in the order of `ShardKey`, {o_key} the same of the alias o, and so on.
-- Times are clock_timestamp(): now() stands still inside a transaction.

-- name: not_off
-- Left out where no switch is set, as nearly always: it is a tenth of a claim.
k.shard_scope <> ALL(%(off_scopes)s::integer[])
       AND (k.shard_scope, k.shard_identifier) NOT IN (
            SELECT * FROM unnest(%(off_shard_scopes)s::integer[], %(off_shards)s::bigint[]))
       AND

-- name: keeps
-- Which failures keep their shard from a claim: the whole waits for its next try, or a crash is due
-- again, whose shard is drained alone (claim_crashed).
(CASE WHEN f.scheduled_for > clock_timestamp() AND %(heed)s THEN f.level = {shard_level} ELSE f.crashed END)

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

-- name: delayed
p.{is_delayed_reason} AND (p.scheduled_for <= clock_timestamp() OR %(delayed_too)s)

-- name: unknown
p.{is_unknown_reason} AND p.category = ANY(%(known)s::integer[])

-- name: held
-- Held messages come back when no switch names them and nothing of theirs waits for a next try. Once
-- a failure is due, only the oldest held message of the group that failed comes back to be tried; the
-- rest follows its success. In scopes that do not coalesce a delayed lower id of the key holds them.
p.{is_held_reason} AND NOT ({switched})
   AND NOT EXISTS (
       SELECT 1 FROM {failure} f
        WHERE ({f_key}) = ({p_key}) AND f.category = p.category
          AND (f.level = {category_level} OR (f.level = {object_level} AND f.object_identifier = p.object_identifier))
          AND %(heed)s
          AND NOT (f.scheduled_for <= clock_timestamp() AND f.object_identifier = p.object_identifier
                   AND NOT EXISTS (SELECT 1 FROM {parked} q
                                    WHERE ({q_key}) = ({p_key}) AND q.category = p.category
                                      AND q.object_identifier = p.object_identifier
                                      AND q.{is_held_reason} AND q.id < p.id)))
   AND NOT (p.shard_scope = ANY(%(ordered)s::integer[]) AND EXISTS (
       SELECT 1 FROM {parked} d
        WHERE ({d_key}) = ({p_key}) AND d.category = p.category
          AND d.object_identifier = p.object_identifier
          AND d.{is_delayed_reason} AND d.id < p.id))

-- name: freed_category
p.{is_held_reason} AND ({p_key}) = ({one_key}) AND p.category = %(category)s

-- name: freed_object
-- By the index of groups: a walk in the order of ids would read all that is parked for each object
-- that recovers.
p.id = ANY(ARRAY(
    SELECT h.id FROM {parked} h
     WHERE ({h_key}, h.category) = ({one_key}, %(category)s)
       AND h.object_identifier BETWEEN %(object)s AND %(object)s AND h.{is_held_reason}
     ORDER BY {h_key}, h.category, h.object_identifier, h.id LIMIT 1000))

-- name: is_dead
-- A message of an at-most-once scope is a dead letter while its handler runs: one that a live lease
-- covers is not dead, and would run twice.
p.{is_dead_reason} AND NOT (p.error = %(not_finished)s AND EXISTS (
    SELECT 1 FROM {lease} l WHERE ({l_key}) = ({p_key}) AND l.until > clock_timestamp()))

-- name: requeued
{is_dead} AND p.id = ANY(%(ids)s)
