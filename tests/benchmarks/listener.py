"""A drainer without Celery, in a process that `wake` starts.

Its handler reports its start.
"""

from __future__ import annotations

import sys
import threading

import django

django.setup()

from hybridcloud.outbox.deliver.listener import ListeningDrainer, tables_of
from silos import SiloMode
from silos.mode import CurrentSilo
from tests.benchmarks.celery_app import begin


def main() -> None:
    drainer = ListeningDrainer(tables_of([CurrentSilo(SiloMode.CELL, "us")]))

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        drainer.stop()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    begin()
    drainer.run()


main()
