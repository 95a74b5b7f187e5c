"""PgQueuer: one entrypoint, drained.

It keeps no order per key, so it does less than the others here.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job


async def main() -> None:
    told = json.load(sys.stdin)
    calls, wait = [0], told["handler_ms"] / 1000
    connection = await asyncpg.connect(told["dsn"])
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("handle", concurrency_limit=told.get("concurrency_limit", 0))
    async def handle(job: Job) -> None:
        calls[0] += 1
        json.loads(job.payload or b"null")
        if wait:
            await asyncio.sleep(wait)

    queries = queuer.qm.queries
    await queries.install()
    rows = told["rows"]
    for start in range(0, len(rows), 5000):
        payloads = [json.dumps({"n": n}).encode() for _, n in rows[start : start + 5000]]
        await queries.enqueue(["handle"] * len(payloads), payloads, [0] * len(payloads))
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    begin = time.perf_counter()
    await queuer.qm.run(
        mode=QueueExecutionMode.drain,
        batch_size=told["batch_size"],
        dequeue_timeout=timedelta(seconds=1),
    )
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "calls": calls[0]}))


try:
    import uvloop  # documented as the faster loop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
