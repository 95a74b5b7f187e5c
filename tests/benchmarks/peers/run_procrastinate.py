"""Procrastinate: a job per message, with the shard as its lock.

Jobs are deleted when they succeed, because otherwise the queue would only grow.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import procrastinate

# By default it logs a line for each job, which is not how a busy worker is run.
logging.basicConfig(level=logging.WARNING)


async def main() -> None:
    told = json.load(sys.stdin)
    calls, wait = [0], told["handler_ms"] / 1000
    connector = procrastinate.PsycopgConnector(conninfo=told["dsn"])
    app = procrastinate.App(connector=connector)

    @app.task(name="handle")
    async def handle(n: int) -> None:
        calls[0] += 1
        if wait:
            await asyncio.sleep(wait)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        by_shard: dict[int, list[int]] = {}
        for shard, number in told["rows"]:
            by_shard.setdefault(shard, []).append(number)
        for shard, numbers in by_shard.items():
            await handle.configure(lock=str(shard)).batch_defer_async(*({"n": n} for n in numbers))
        async with connector.pool.connection() as connection:
            await connection.set_autocommit(True)
            await connection.execute("VACUUM ANALYZE")
            await connection.execute("CHECKPOINT")
            await connection.set_autocommit(False)
        begin = time.perf_counter()
        # With concurrency it also stops when the remaining jobs wait for a lock.
        while calls[0] < len(told["rows"]):
            await app.run_worker_async(
                wait=False,
                concurrency=told["concurrency"],
                delete_jobs="successful",
                listen_notify=False,
                install_signal_handlers=False,
            )
        seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "calls": calls[0]}))


asyncio.run(main())
