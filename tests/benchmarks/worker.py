"""A drainer, in a process that `workers` starts.

It drains when told to, and reports how many handler calls it made.
"""

from __future__ import annotations

import json
import sys

import django

django.setup()

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain.due import find_due_shards, split
from hybridcloud.outbox.drain.limits import LIMITS
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo
from tests.benchmarks.engines import handler, receiving
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.world import US


def main() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "end":
            return
        told = json.loads(line)
        calls = [0]
        with (
            assume_silo(SiloMode.CELL, cell="us"),
            receiving(Category.DRAINED, handler(told["handler_ms"], calls)),
        ):
            due = find_due_shards(CellOutbox, alias=US, limit=10_000)
            parts = split(due, told["parts"])
            after, most = parts[min(told["part"], len(parts) - 1)]
            Drainer(CellOutbox, US).sweep(
                after=after, most=min(most, LIMITS.shards_per_pass), budget=600
            )
        sys.stdout.write(f"{calls[0]}\n")
        sys.stdout.flush()


main()
