-- What a scheduler tick sweeps.

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

-- name: compact
-- Rule 5: all but the newest message of each object, of those that this statement sees.
DELETE FROM {outbox} WHERE id IN (
    SELECT id FROM (
        SELECT o.id, row_number() OVER (PARTITION BY o.category, o.object_identifier ORDER BY o.id DESC) AS age
          FROM unnest({arrays}) k({key})
         CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                              WHERE {o_in_shard} ORDER BY {o_key}, o.id) o) t
     WHERE t.age > 1)
