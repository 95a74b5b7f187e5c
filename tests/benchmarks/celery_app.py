"""The Celery app of the wake benchmark; its handler reports its start."""

from __future__ import annotations

import json
import os
import time
import warnings

import redis
from celery import Celery
from celery.exceptions import SecurityWarning
from celery.signals import worker_ready
from kombu import Queue

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")

from hybridcloud.outbox.tasks import queue_names

STARTED = "bench.wake.started"
READY = "bench.wake.ready"

warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("bench")
app.config_from_object("django.conf:settings", namespace="CELERY")
# As docs/how-to/wake-drainers.md advises.
app.conf.CELERY_DB_REUSE_MAX = 100
app.conf.task_queues = [Queue(name) for name in queue_names()]
app.conf.task_default_queue = queue_names()[0]
app.autodiscover_tasks()


@worker_ready.connect
def begin(**_: object) -> None:
    """Connect the handler once Django is set up, and report it."""
    from hybridcloud.outbox import process_cell_outbox
    from tests.benchmarks.subjects.categories import Category

    client = redis.Redis.from_url(os.environ["REDIS_URL"])

    def started(**_: object) -> None:
        client.rpush(STARTED, json.dumps(time.time()))

    process_cell_outbox.connect(started, sender=Category.DRAINED, weak=False)
    client.rpush(READY, 1)
