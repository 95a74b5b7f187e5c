-- What a flush or a direct drain asks of its shard.

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
