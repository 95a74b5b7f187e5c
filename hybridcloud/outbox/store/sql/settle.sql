-- What handled, parked and settled messages leave behind.

-- name: ack
-- Exact ids, never a range: a lower id may be committed later (rule 1).
DELETE FROM {outbox} WHERE id = ANY(%(ids)s)

-- name: ack_parked
DELETE FROM {parked} WHERE id = ANY(%(parked_ids)s)

-- name: forget_failures
DELETE FROM {failure} WHERE id = ANY(%(failure_ids)s)

-- name: park
-- Moves messages out of the outbox with their ids and dates, in one statement.
WITH gone AS (
    DELETE FROM {outbox} WHERE id = ANY(%(park_ids)s) RETURNING *
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
