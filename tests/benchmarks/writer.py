"""Writers, in a process that `wake` starts: threads that commit messages."""

from __future__ import annotations

import json
import sys
import threading
import time

import django

django.setup()

from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings

from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo
from tests.benchmarks import celery_app
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.world import US


def _commit_for(seconds: float, counts: list[int], number: int) -> None:
    celery_app.app.set_current()
    with assume_silo(SiloMode.CELL, cell="us"):
        connections[US].ensure_connection()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            with outbox_context(transaction.atomic(using=US)):
                Category.DRAINED.as_cell_outbox(
                    shard_identifier=number, object_identifier=counts[number]
                ).save(using=US)
            counts[number] += 1
    connections.close_all()


def main() -> None:
    # Kicks use the app that is current in the process.
    celery_app.app.set_current()
    count = json.loads(sys.argv[1])["threads"]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "end":
            return
        told = json.loads(line)
        counts = [0] * count
        with override_settings(HYBRIDCLOUD={**settings.HYBRIDCLOUD, **told["conf"]}):
            threads = [
                threading.Thread(target=_commit_for, args=(told["seconds"], counts, number))
                for number in range(count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        sys.stdout.write(f"{sum(counts) / told['seconds']}\n")
        sys.stdout.flush()


main()
