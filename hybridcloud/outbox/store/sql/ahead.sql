-- Going ahead by ids under an old snapshot.

-- name: ahead
-- The oldest messages behind an id, whoever's: by the primary key, not by the shard index.
SELECT {shard}, id FROM {outbox} WHERE {in_cell}id > %(passed)s ORDER BY id LIMIT %(most)s

-- name: behind
-- The same of those up to it, which were passed: the dead between them lie in the order of this walk.
SELECT {shard}, id FROM {outbox} WHERE {in_cell}id <= %(passed)s ORDER BY id LIMIT %(most)s

-- name: lease_bytes
SELECT pg_total_relation_size('{lease}'::regclass)

-- name: rewrite_leases
-- Leases come and go all the time, and under an old snapshot none of the dead can be cleaned away.
-- TRUNCATE asks no snapshot. At once or not at all: whoever holds the table is not waited for.
LOCK TABLE {lease} IN ACCESS EXCLUSIVE MODE NOWAIT;
CREATE TEMPORARY TABLE hybridcloud_live_leases ON COMMIT DROP AS TABLE {lease};
TRUNCATE {lease};
INSERT INTO {lease} TABLE hybridcloud_live_leases
