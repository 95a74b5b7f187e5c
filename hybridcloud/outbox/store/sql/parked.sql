-- Messages that may not run now, and their way back.

-- name: any_parked
-- Whether a mover has anything to look at; dead letters wait for people.
SELECT 1 FROM {parked} WHERE reason < 'dead' OR reason > 'dead' LIMIT 1

-- name: next_delayed
-- Seconds until the next delayed message is due.
SELECT extract(epoch FROM min(scheduled_for) - clock_timestamp())::float8 FROM {parked} WHERE {is_delayed_reason}

-- name: bring_back
-- Moves parked messages to the outbox, oldest first, ids kept; {which} says which of them.
WITH due AS (
    SELECT p.id FROM {parked} p WHERE {which}
     ORDER BY p.id LIMIT 1000 FOR UPDATE OF p SKIP LOCKED
), gone AS (
    DELETE FROM {parked} p USING due WHERE p.id = due.id RETURNING p.*
)
INSERT INTO {outbox} (id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for,
                      date_added, headers) OVERRIDING SYSTEM VALUE
SELECT id, {key}, category, object_identifier, payload, scheduled_from, scheduled_for, date_added, headers
  FROM gone ORDER BY id
RETURNING {key}
