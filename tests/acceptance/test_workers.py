"""Real Celery workers in processes of their own: every pool drains, and a killed one is replaced in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from hybridcloud.outbox.tasks import enqueue_outbox_jobs, queue_name
from hybridcloud.redis import redis_client
from silos import SiloMode
from tests.acceptance import worker_app
from tests.hybridcloud.outbox.engine import Child, failures, ids, leases, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.django_db(transaction=True),
]
QUEUE = queue_name(SiloMode.CELL, "us")
START = 40.0
PROMISED = 20.0


@pytest.fixture
def redis() -> Iterator[Redis]:
    """Give an empty Redis, and leave it so."""
    client = redis_client()
    assert client is not None
    client.flushdb()
    yield client
    client.flushdb()


@contextmanager
def worker(pool: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in a process group of its own, for the cell us."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.acceptance.worker_app", "worker"),
        *("--pool", pool, "--concurrency", "2", "--queues", QUEUE, "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
    process = subprocess.Popen(command, env=Child.environment(), start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)


def until(condition: Callable[[], object], *, within: float, tick: bool = False) -> float:
    """Wait until a condition holds; return how long it took, in time that this process was let run."""
    passed, ticked, seen = 0.0, 0.0, monotonic()
    pause = threading.Event()
    while not condition():
        assert passed < within, "it never came true"
        if tick and passed - ticked >= 2:
            ticked = passed
            enqueue_outbox_jobs(cell="us")
        pause.wait(0.05)
        # A machine that stands still for a moment keeps nobody's promise.
        passed, seen = passed + min(monotonic() - seen, 0.5), monotonic()
    return passed


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_of_every_pool_drains_what_a_tick_finds(pool: str, redis: Redis) -> None:
    for obj in range(20):
        put(shard=obj % 4, obj=obj)
    with worker(pool):
        enqueue_outbox_jobs(cell="us")
        until(lambda: not ids(), within=START, tick=True)
    assert sorted(map(int, handled(redis))) == list(range(20))
    assert leases() == []
    assert failures() == []


@pytest.mark.rule(7)
def test_with_what_is_shipped_a_killed_workers_shard_runs_again_within_20_seconds(
    redis: Redis,
) -> None:
    redis.set(worker_app.HOLD, 7)
    put(obj=7)
    with worker("solo") as first:
        enqueue_outbox_jobs(cell="us")
        until(lambda: redis.llen(worker_app.STARTED), within=START, tick=True)
        with worker("solo"):
            until(lambda: _is_listening(redis), within=START)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(15)
            redis.delete(worker_app.HOLD)
            took = until(lambda: "7" in handled(redis), within=PROMISED, tick=True)
            until(lambda: not ids(), within=START)
    assert took <= PROMISED
    assert failures() == []


def _is_listening(redis: Redis) -> bool:
    """Say whether two workers wait on the queue, by a message that only the second is free to take."""
    if not redis.get("test.probe"):
        redis.set("test.probe", 1)
        put(shard=99, obj=99)
        enqueue_outbox_jobs(cell="us")
    return "99" in handled(redis)


def handled(redis: Redis) -> list[str]:
    """Return the objects that the workers' handlers have done, in order."""
    return redis.lrange(worker_app.HANDLED, 0, -1)


def test_sigterm_ends_a_worker_in_good_order_and_is_no_crash(redis: Redis) -> None:
    redis.set(worker_app.HOLD, 7)
    put(obj=7)
    with worker("threads") as process:
        enqueue_outbox_jobs(cell="us")
        until(lambda: redis.llen(worker_app.STARTED), within=START, tick=True)
        os.kill(process.pid, signal.SIGTERM)
        redis.delete(worker_app.HOLD)
        process.wait(START)
    assert ids() == []
    assert leases() == []
    assert failures() == []
