-- What people do to dead letters.

-- name: find_dead
SELECT p.id, {p_shard}, p.category, p.object_identifier, p.error, p.date_added, p.parked_at
  FROM {parked} p WHERE {is_dead} AND {which} ORDER BY p.id LIMIT %(most)s

-- name: purge_dead
DELETE FROM {parked} p WHERE {is_dead} AND p.id = ANY(%(ids)s) RETURNING p.id

-- name: forget_attempts
-- Of what is requeued: its attempts begin again.
DELETE FROM {failure} WHERE message_id = ANY(%(ids)s)
