"""A writer, in a process that `bloat` starts: commits at a steady rate."""

from __future__ import annotations

import json
import sys
import time

import django

django.setup()

from hybridcloud.outbox import CellOutbox
from silos import SiloMode, assume_silo
from tests.benchmarks.subjects.categories import Category
from tests.benchmarks.world import US

_EACH = 10
_SHARDS = 200


def main() -> None:
    told = json.loads(sys.argv[1])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    begin, written = time.perf_counter(), 0
    with assume_silo(SiloMode.CELL, cell="us"):
        while (at := time.perf_counter() - begin) < told["seconds"]:
            behind = int(at * told["rate"]) - written
            if behind < _EACH:
                time.sleep(0.002)
                continue
            # Never more at once than a tenth of a second's messages, however far behind it is.
            count = min(behind, told["rate"] // 10)
            CellOutbox.objects.using(US).bulk_create(
                Category.DRAINED.as_cell_outbox(
                    shard_identifier=number % _SHARDS + 1, object_identifier=number
                )
                for number in range(written, written + count)
            )
            written += count


main()
