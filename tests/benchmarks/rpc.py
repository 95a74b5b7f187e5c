"""What a call to another silo costs, alone and in a batch.

The other silo is a real server in a process of its own; both sides sign, parse and
check the bytes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import urllib3

from hybridcloud.rpc import batch
from hybridcloud.rpc.client import HttpTransport, transport
from silos import SiloMode, assume_silo
from tests.benchmarks import world
from tests.benchmarks.environments import ROOT
from tests.benchmarks.measure import Results, alternate
from tests.benchmarks.report import tell
from tests.benchmarks.subjects.services import RpcDocument, bench_service

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST: Final = "127.0.0.1"
_DOCUMENT: Final = RpcDocument(id=1, organization_id=2, name="document", body="x" * 40)


@contextmanager
def _server() -> Iterator[str]:
    """Serve control in a process of its own; yield its address."""
    with socket.socket() as taken:
        taken.bind((_HOST, 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "granian", "--interface", "wsgi", "--factory"]
    command += ["--host", _HOST, "--port", str(port), "--workers", "1", "--blocking-threads", "2"]
    command += ["--no-ws", "--log-level", "error", "django.core.wsgi:get_wsgi_application"]
    environment = {**world.environment(), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    address = f"http://{_HOST}:{port}"
    try:
        _wait_for(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(15)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib3.request("GET", address, retries=False, timeout=1)
        except urllib3.exceptions.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"No server at {address}.")


def _alone(count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        bench_service.put(document=_DOCUMENT)
    return (time.perf_counter() - begin) / count * 1e6


def _unkept(address: str, count: int) -> float:
    """Call with a new transport each time, and so without keep-alive."""
    begin = time.perf_counter()
    for _ in range(count):
        with transport.override(HttpTransport(lambda _: address)):
            bench_service.put(document=_DOCUMENT)
    return (time.perf_counter() - begin) / count * 1e6


def _in_batches(each: int, batches: int) -> float:
    begin = time.perf_counter()
    for _ in range(batches):
        with batch() as calls:
            items = [calls.call(bench_service.put, document=_DOCUMENT) for _ in range(each)]
        if any(item.result() != 1 for item in items):
            raise AssertionError("A call of a batch was not made.")
    return (time.perf_counter() - begin) / (batches * each) * 1e6


def measure(*, runs: int, quick: bool) -> Results:
    """Call over HTTP, with one call and with many per request."""
    results = Results("rpc", runs)
    count = 100 if quick else 500
    with (
        _server() as address,
        transport.override(HttpTransport(lambda _: address)),
        assume_silo(SiloMode.CELL, cell="us"),
    ):
        _alone(20)
        _in_batches(10, 3)
        candidates = {
            "one call, a connection each": partial(_unkept, address, count),
            "one call, kept alive": partial(_alone, count),
            "10 calls a batch": partial(_in_batches, 10, count // 10),
            "100 calls a batch": partial(_in_batches, 100, max(3, count // 50)),
            "1000 calls a batch": partial(_in_batches, 1000, 3),
        }
        measured = alternate(candidates, runs=runs, tell=tell)
    for name, each in measured.items():
        results.add(name, each, "µs/call")
    base = results.median("one call, kept alive")
    for name in candidates:
        if name != "one call, kept alive":
            results.compare(
                name, f"{name}: faster than one call, kept alive", base / results.median(name)
            )
    results.notes.append(
        f"{os.cpu_count()} cores are shared by caller and server; the method itself does nothing."
    )
    return results
