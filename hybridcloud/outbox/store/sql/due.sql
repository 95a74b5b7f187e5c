-- Which shards are due.

-- name: cells
-- The cells that control messages wait for: one probe of the shard index for each.
WITH RECURSIVE c AS (
    (SELECT cell_name FROM {outbox} ORDER BY cell_name LIMIT 1)
    UNION ALL
    SELECT n.cell_name FROM c CROSS JOIN LATERAL
        (SELECT o.cell_name FROM {outbox} o WHERE o.cell_name > c.cell_name
          ORDER BY o.cell_name LIMIT 1) n
)
SELECT cell_name FROM c

-- name: find_due
{due}
SELECT {shard} FROM due
