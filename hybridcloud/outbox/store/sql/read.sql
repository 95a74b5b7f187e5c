-- What claimed shards hold.

-- name: fetch
-- Always a statement after the claim's, so that it sees what the last owner deleted (rule 1).
-- `afters`: where each shard's reading begins, 0 for its head.
-- `flagged`: the shard has parked messages or failures; whoever reads that reads them too. Looked for
-- once a shard: but for OFFSET both tables may be read whole, or asked again for each message.
-- In the order of the whole index and, of the key, the last column as a range, here and below: for
-- equality and ORDER BY id the primary key would do as well, and where statistics are of one hot
-- shard it is taken, and walked from end to end. Compared as rows, key and id would have
-- PostgreSQL 15, unlike 18, walk from the shard to the end of the index.
SELECT k.n, {o_message},
       x.flagged
  FROM unnest({arrays}, %(afters)s::bigint[]) WITH ORDINALITY k({key}, after, n)
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({k_key}) OFFSET 0)
                         OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) OFFSET 0) AS flagged
                      OFFSET 0) x
 CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                      WHERE {o_in_shard} AND o.id > k.after AND o.id <= %(bound)s
                      ORDER BY {o_key}, o.id LIMIT %(most)s) o

-- name: fetch_own
-- A sync flush in coalescing scopes: the groups of its own messages and nothing else.
SELECT k.n, {o_message},
       x.flagged
  FROM unnest({arrays}) WITH ORDINALITY k({key}, n)
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({k_key}) OFFSET 0)
                         OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({k_key}) OFFSET 0) AS flagged
                      OFFSET 0) x
 CROSS JOIN LATERAL (SELECT * FROM {outbox} o
                      WHERE {o_in_shard}
                        AND (o.category, o.object_identifier) IN
                            (SELECT * FROM unnest(%(categories)s::integer[], %(objects)s::bigint[]))
                      ORDER BY {o_key}, o.id LIMIT %(most)s) o

-- name: fetch_own_one
-- The same for one group of one shard, as most saves are: without joins, since planning is most of it.
SELECT 1::bigint AS n, {o_message},
       EXISTS (SELECT 1 FROM {parked} p WHERE ({p_key}) = ({one_key}))
           OR EXISTS (SELECT 1 FROM {failure} f WHERE ({f_key}) = ({one_key})) AS flagged
  FROM {outbox} o
 WHERE ({o_key}) = ({one_key})
   AND (o.category, o.object_identifier) = ((%(categories)s::integer[])[1], (%(objects)s::bigint[])[1])
 ORDER BY o.id LIMIT %(most)s

-- name: parked_of_groups
SELECT g.n, p.id, p.category, p.object_identifier, p.reason
  FROM unnest({arrays}, %(categories)s::integer[], %(objects)s::bigint[], %(ns)s::bigint[])
       g({key}, category, object_identifier, n)
 CROSS JOIN LATERAL (SELECT * FROM {parked} p
                      WHERE ({p_key}, p.category) = ({g_key}, g.category)
                        AND p.object_identifier BETWEEN g.object_identifier AND g.object_identifier
                      ORDER BY {p_key}, p.category, p.object_identifier, p.id LIMIT 10000) p

-- name: failures_of_shards
SELECT k.n, f.id, f.level, f.category, f.object_identifier, f.message_id, f.attempts, f.crashed,
       f.scheduled_for > clock_timestamp()
  FROM unnest({arrays}) WITH ORDINALITY k({key}, n)
 CROSS JOIN LATERAL (SELECT * FROM {failure} f WHERE {f_in_shard} ORDER BY {f_key}) f
