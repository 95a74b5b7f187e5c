-- How deep shards are.

-- name: depths
SELECT {shard}, count(*) AS depth FROM (
    SELECT {key} FROM {outbox} UNION ALL SELECT {key} FROM {parked}) m
 GROUP BY {key} ORDER BY depth DESC, {key} LIMIT %(most)s
