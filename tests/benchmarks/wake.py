"""How long a committed message waits for its handler, and what kicks cost.

There are two ways to wake a drainer, both measured as a writer uses them: a task to
a real Celery worker with the queue of one cell, and NOTIFY to a listening drainer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import redis
from django.conf import settings
from django.db import transaction
from django.test import override_settings

from hybridcloud import hooks
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.deliver.notify import notifier
from silos import SiloMode, assume_silo
from tests.benchmarks import celery_app, world
from tests.benchmarks.celery_app import READY, STARTED
from tests.benchmarks.engines import OURS
from tests.benchmarks.environments import ROOT
from tests.benchmarks.measure import Measured, Results, alternate
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.workers import Child
from tests.benchmarks.world import US

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUEUE: Final = "hybridcloud.cell.us"
_WRITERS: Final = 2
_PAUSE: Final = 0.12
"""Longer than a kick is deferred, so that each message is the first of its kick."""


class _Committed(hooks.Hooks):
    """Notes the time of the newest commit, after it and before its kick."""

    at = 0.0

    def saved(self, fact: hooks.Saved) -> None:
        self.at = time.time()


@contextmanager
def _worker(client: redis.Redis) -> Iterator[None]:
    client.delete(READY, STARTED, _QUEUE)
    command = [sys.executable, "-W", "ignore", "-m", "celery", "-q", "-A"]
    command += [
        "tests.benchmarks.celery_app",
        "worker",
        "--pool",
        "solo",
        "-Q",
        _QUEUE,
        "--loglevel",
        "ERROR",
    ]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = subprocess.Popen(command, cwd=ROOT, env=dict(world.environment()))
    try:
        if client.blpop([READY], timeout=60) is None:
            raise RuntimeError("The Celery worker did not start within 60 s.")
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _listener(client: redis.Redis) -> Iterator[None]:
    client.delete(READY, STARTED)
    child = Child("listener")
    try:
        if client.blpop([READY], timeout=60) is None:
            raise RuntimeError("The listening drainer did not start within 60 s.")
        yield
    finally:
        child.end()


def _write(number: int) -> None:
    with outbox_context(transaction.atomic(using=US)):
        Category.DRAINED.as_cell_outbox(shard_identifier=1, object_identifier=number).save(using=US)


def _latencies(client: redis.Redis, samples: int, *, kick: str) -> list[float]:
    """Return milliseconds from commit to the start of the handler."""
    conf = {**settings.HYBRIDCLOUD, "FLUSH": "kick", "KICK": kick}
    found = []
    with (
        override_settings(HYBRIDCLOUD=conf),
        assume_silo(SiloMode.CELL, cell="us"),
        hooks.installed(_Committed()) as committed,
    ):
        for number in range(samples + 5):
            time.sleep(_PAUSE)
            _write(number)
            heard: Any = client.blpop([STARTED], timeout=30)
            if heard is None:
                raise RuntimeError("No handler started within 30 s of a kick.")
            found.append((json.loads(heard[1]) - committed.at) * 1000)
    # The first few opened connections.
    return found[5:]


def _commits(children: list[Child], *, mode: str, seconds: float) -> float:
    world.empty(*OURS)
    for child in children:
        child.say(json.dumps({"conf": _MODES[mode], "seconds": seconds}))
    return sum(float(child.hear()) for child in children)


def measure(*, runs: int, quick: bool) -> Results:
    """Measure the time from commit to handler, and what kicks cost writers."""
    results = Results("wake", runs)
    # Kicks use the app that is current in the process.
    celery_app.app.set_current()
    client = redis.Redis.from_url(os.environ["REDIS_URL"], socket_timeout=90)
    samples, seconds = (15, 1.0) if quick else (100, 3.0)
    world.empty(*OURS)
    # Alternating would start a worker for each run, so the runs of one way follow each other.
    with _worker(client):
        by_task = [_latencies(client, samples, kick="celery") for _ in range(runs)]
        tell("writers with a worker that drains what they write")
        _measure_writers(results, "with a worker", runs=runs, seconds=seconds)
    client.delete(_QUEUE)
    world.empty(*OURS)
    with _listener(client):
        by_notify = [_latencies(client, samples, kick="notify") for _ in range(runs)]
        time.sleep(_PAUSE)  # the last kick may have been deferred
    notifier().close()
    _measure_writers(results, "writers alone", runs=runs, seconds=seconds)
    client.delete(_QUEUE)
    for way, each in (("task", by_task), ("notify", by_notify)):
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            values = tuple(sorted(run)[int(len(run) * share)] for run in each)
            results.add(f"commit to handler, {way}/{name}", Measured(values), "ms", count=samples)
        results.compare(
            f"{way}/p50",
            f"ms from commit to handler with kick by {way}, median",
            results.median(f"commit to handler, {way}/p50"),
            most=10,
        )
        results.compare(
            f"{way}/p95",
            "the same, 95th percentile",
            results.median(f"commit to handler, {way}/p95"),
        )
    for mode, least in (("kick", 0.8), ("notify", 0.8)):
        value = results.median(f"writers alone/{mode}") / results.median("writers alone/cron")
        results.compare(
            f"writers alone/{mode}",
            f"writers alone: commits with {mode} over without",
            value,
            least=least,
        )
    results.compare(
        "with a worker/kick",
        "with a worker: commits with kick over without",
        results.median("with a worker/kick") / results.median("with a worker/cron"),
    )
    results.notes.append(
        "With a worker: it shares the cores with the writers, and drains only when it is kicked."
    )
    return results


_MODES: Final = {
    "kick": {"FLUSH": "kick", "KICK": "celery"},
    "notify": {"FLUSH": "kick", "KICK": "notify"},
    "cron": {"FLUSH": "cron"},
}


def _measure_writers(results: Results, name: str, *, runs: int, seconds: float) -> None:
    children = [Child("writer", threads=4) for _ in range(_WRITERS)]
    try:
        for child in children:
            child.hear()
        candidates = {
            mode: partial(_commits, children, mode=mode, seconds=seconds) for mode in _MODES
        }
        for mode, measured in alternate(
            candidates, runs=runs, tell=lambda what: tell(f"{name}: {what}")
        ).items():
            results.add(f"{name}/{mode}", measured, "commits/s")
    finally:
        for child in children:
            child.end()
