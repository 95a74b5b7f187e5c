"""Drains with one process and with two, to see how workers scale."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.benchmarks import shapes, world
from tests.benchmarks.engines import OUTBOX, Ours
from tests.benchmarks.environments import ROOT
from tests.benchmarks.measure import alternate
from tests.benchmarks.report import tell

if TYPE_CHECKING:
    from tests.benchmarks.measure import Results
    from tests.benchmarks.shapes import Shape


class Child:
    """A process with Django set up, which obeys the lines on its input."""

    def __init__(self, program: str, **arguments: object) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                f"tests.benchmarks.{program}",
                json.dumps(arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(world.environment()),
            cwd=ROOT,
        )

    def hear(self) -> str:
        """Return the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The child ended with status {self.process.wait()}.")
        return line.strip()

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it, by force if needed."""
        try:
            self.say("end")
            self.process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                # It may have ended on its own, with the last line unread.
                with suppress(BrokenPipeError):
                    stream.close()


def _rate(children: list[Child], shape: Shape, *, handler_ms: float) -> float:
    Ours().fill(shape)
    begin = time.perf_counter()
    for number, child in enumerate(children):
        child.say(
            json.dumps(
                {
                    "handler_ms": handler_ms,
                    "parts": len(children),
                    "part": number,
                }
            )
        )
    calls = sum(int(child.hear()) for child in children)
    seconds = time.perf_counter() - begin
    left = world.execute(f"SELECT count(*) FROM {OUTBOX}")[0][0]
    if calls != shape.calls or left:
        raise AssertionError(f"workers: {calls} calls instead of {shape.calls}, {left} left")
    return shape.count / seconds


def measure(results: Results, *, runs: int) -> None:
    """Drain with one process and with two that share the due shards."""
    children = [Child("worker") for _ in range(2)]
    try:
        for child in children:
            child.hear()
        cases = {
            "10000x1, no-op": (shapes.MANY_SHARDS, 0.0),
            "2000x1, 1 ms": (shapes.MANY_SHARDS.at_most(2000), 1.0),
            "1x10000, no-op": (shapes.HOT_SHARD, 0.0),
        }
        for name, (shape, wait) in cases.items():
            candidates = {
                "one worker": partial(_rate, children[:1], shape, handler_ms=wait),
                "two workers": partial(_rate, children, shape, handler_ms=wait),
            }
            for key, measured in alternate(
                candidates, runs=runs, tell=lambda what, n=name: tell(f"{n}: {what}")
            ).items():
                results.add(f"{name}/{key}", measured, "messages/s", count=shape.count)
    finally:
        for child in children:
            child.end()


def compare(results: Results) -> None:
    """Compare two workers with one."""
    for name, least in (("10000x1, no-op", None), ("2000x1, 1 ms", 1.5), ("1x10000, no-op", None)):
        value = results.median(f"{name}/two workers") / results.median(f"{name}/one worker")
        results.compare(f"{name}/two workers", f"{name}: two workers over one", value, least=least)
    results.notes.append(
        "Two no-op workers and PostgreSQL share the cores; with 1 ms handlers the workers wait, as real ones do."
    )
