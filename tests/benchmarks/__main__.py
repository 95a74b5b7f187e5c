"""Runs benchmarks: ``python -m tests.benchmarks [--quick] [NAME ...]``.

``make bench`` runs it on servers of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module

import django

NAMES = ("drain", "write", "due", "wake", "bloat", "rpc", "backfill")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer runs and messages")
    parser.add_argument("--runs", type=int, help="runs of each figure (default 5, quick 3)")
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.benchmarks.settings"
    django.setup()
    # After setup: they import models.
    from tests.benchmarks import world
    from tests.benchmarks.measure import LEAST_RUNS, describe_machine
    from tests.benchmarks.report import console, keep, verdicts

    runs = options.runs or (3 if options.quick else LEAST_RUNS)
    found = []
    with world.databases():
        machine = describe_machine(world.dsn(world.US))
        console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
        for name in options.names or NAMES:
            console.rule(name)
            begin = time.monotonic()
            results = import_module(f"tests.benchmarks.{name}").measure(
                runs=runs, quick=options.quick
            )
            keep(results, machine)
            console.print(f"  {name}: {time.monotonic() - begin:.0f} s")
            found.append(results)
    targets = [
        (f"{results.name}/{key}", ratio)
        for results in found
        for key, ratio in results.ratios.items()
        if ratio.is_target
    ]
    console.print(verdicts(targets, title="targets"))
    missed = [key for key, ratio in targets if not ratio.reached]
    console.print(f"{len(targets) - len(missed)} of {len(targets)} targets reached")
    if options.quick:
        console.print("A quick run is only a first look: repeat missed targets without --quick.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
