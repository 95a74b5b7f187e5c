-- What handled, parked and failed messages leave behind.

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

-- name: record_failure
-- Fenced by the token: a worker that was stalled past its lease records nothing.
INSERT INTO {failure} AS f ({key}, level, category, object_identifier, message_id, attempts,
                            scheduled_from, scheduled_for, crashed, last_error, last_traceback)
SELECT {k_key}, %(level)s, %(category)s, %(object)s, %(message_id)s, %(attempts)s, clock_timestamp(),
       clock_timestamp() + make_interval(secs => %(delay_s)s),
       %(crashed)s, %(error)s, %(traceback)s
  FROM unnest({arrays}) k({key}) JOIN {lease} l ON ({l_key}) = ({k_key}) AND l.token = %(token)s
    ON CONFLICT ({conflict}) WHERE level = {level} DO UPDATE
   SET category = excluded.category, object_identifier = excluded.object_identifier,
       message_id = excluded.message_id, attempts = excluded.attempts,
       scheduled_from = excluded.scheduled_from, scheduled_for = excluded.scheduled_for,
       crashed = excluded.crashed, last_error = excluded.last_error,
       last_traceback = excluded.last_traceback, last_failure_at = clock_timestamp(),
       first_failure_at = CASE WHEN excluded.attempts = 1 THEN clock_timestamp() ELSE f.first_failure_at END
