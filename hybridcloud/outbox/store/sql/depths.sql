-- How deep shards are.

-- name: depths
SELECT {shard}, count(*) AS depth FROM (
    SELECT {key} FROM {outbox} UNION ALL SELECT {key} FROM {parked}) m
 GROUP BY {key} ORDER BY depth DESC, {key} LIMIT %(most)s

-- name: depths_by_category
-- Of all shards: for a person who asks what a kill switch would stop.
SELECT {shard}, category, count(*) FROM (
    SELECT {key}, category FROM {outbox} UNION ALL SELECT {key}, category FROM {parked}) m
 GROUP BY {key}, category
