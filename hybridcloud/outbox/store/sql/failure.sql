-- What failed.

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
