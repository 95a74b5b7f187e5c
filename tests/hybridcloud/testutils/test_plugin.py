"""The plugin stays out of the way of those who don't need it; without it `pip install` could break a test suite."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run_pytest(folder: Path, code: str, *arguments: str) -> str:
    """Run pytest on a file of its own in a process of its own; return what it printed."""
    (folder / "test_it.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-m", "pytest", "--rootdir", "."]
    done = subprocess.run(
        [*command, *arguments, "test_it.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.acceptance
def test_without_django_it_does_nothing_and_imports_nothing(tmp_path: Path) -> None:
    code = """
import sys

def test_it():
    loaded = [name for name in sys.modules if name.partition(".")[0] in {"silos", "hybridcloud"}]
    assert sorted(loaded) == ["hybridcloud", "hybridcloud.testutils", "hybridcloud.testutils.plugin"]
"""
    assert "1 passed" in run_pytest(tmp_path, code)


@pytest.mark.acceptance
def test_its_markers_are_declared(tmp_path: Path) -> None:
    code = """
import pytest

@pytest.mark.silo("monolith")
@pytest.mark.cells("us")
@pytest.mark.rpc_socket
def test_it(): ...
"""
    assert "silo' not found" not in run_pytest(tmp_path, code, "--strict-markers")


def test_a_silo_marker_without_modes_is_refused(tmp_path: Path) -> None:
    code = "import pytest\n@pytest.mark.silo()\ndef test_it(): ...\n"
    assert "No mode in the silo marker" in run_pytest(tmp_path, code)
