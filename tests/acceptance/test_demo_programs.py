"""The demo's processes: none is left behind."""

from __future__ import annotations

import signal
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from fixtures.demo.run import DemoError, Program, Programs

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = "r1"

# -- the processes ----------------------------------------------------------------------------

FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", child.pid, flush=True)
{and_then}
time.sleep(600)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def program_of(folder: Path, code: str) -> Program:
    log = folder / "program.log"
    command = [sys.executable, "-c", code]
    return Program("program", "us", command, {}, log, lambda text: "ready" in text)


def wait_for(program: Program) -> int:
    """Return the id of the child that the program says it has."""
    deadline = time.monotonic() + 20
    while not program.has_started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(program.log.read_text().split()[1])


def is_alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_kill_takes_the_whole_process_group(tmp_path: Path) -> None:
    program = program_of(tmp_path, FAMILY.format(and_then=""))
    program.start(folder=tmp_path)
    child, pid = wait_for(program), program.pid
    program.kill()
    assert not is_alive(child)
    assert not is_alive(pid)


def test_what_does_not_hear_is_stopped_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.demo.run._STOP_S", 0.3)
    deaf = program_of(tmp_path, DEAF + FAMILY.format(and_then=""))
    with Programs(tmp_path, [deaf]) as programs:
        programs.start([deaf])
        child, pid = wait_for(deaf), deaf.pid
    assert not is_alive(child)
    assert not is_alive(pid)


def test_a_frozen_program_is_stopped_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixtures.demo.run._STOP_S", 0.3)
    frozen = program_of(tmp_path, FAMILY.format(and_then=""))
    with Programs(tmp_path, [frozen]) as programs:
        programs.start([frozen])
        child = wait_for(frozen)
        frozen.send(signal.SIGSTOP)
    assert not is_alive(child)


def test_a_program_that_ends_at_its_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    program = program_of(tmp_path, "import sys; sys.exit('no port')")
    with Programs(tmp_path, [program]) as programs:
        programs.start([program])
        with pytest.raises(DemoError, match=r"(?s)program ended with status 1.*no port"):
            programs.wait_started(seconds=20)


def test_a_step_that_fails_stops_the_other_steps(tmp_path: Path) -> None:
    long = program_of(tmp_path, FAMILY.format(and_then=""))
    long.log = tmp_path / "long.log"
    bad = program_of(tmp_path, "import sys; sys.exit('no table')")
    with pytest.raises(DemoError, match=r"(?s)ended with status 1.*no table"):
        Programs(tmp_path).run_to_end([bad, long], seconds=20)
    assert long.status is None
