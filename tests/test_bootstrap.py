"""The search for an interpreter: a newcomer whose Python does not fit must be told so, in a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_KEPT = ("PATH", "LD_LIBRARY_PATH")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A working copy in a path with a space, with a bootstrap that says who runs it."""
    copy = tmp_path / "a working copy"
    shutil.copytree(ROOT / ".ci", copy / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / ".ci/bootstrap.py").write_text("import sys; print(sys.executable, *sys.argv[1:])")
    return copy


def _setup(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [".ci/setup", ".venv", "a.lock"],
        cwd=clone,
        env={name: os.environ[name] for name in _KEPT if name in os.environ} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def _tools(folder: Path) -> str:
    """Return a PATH with what the script needs, and no Python."""
    folder.mkdir(exist_ok=True)
    for name in ("sh", "dirname", "cat"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return str(folder)


def test_the_named_python_is_used(clone: Path) -> None:
    run = _setup(clone, PYTHON=sys.executable)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"{sys.executable} .venv a.lock"


def test_a_named_python_that_is_too_old_is_refused(clone: Path, tmp_path: Path) -> None:
    old = _program(tmp_path / "old python", "#!/bin/sh\ncat >/dev/null\nexit 1\n")
    run = _setup(clone, PYTHON=str(old))
    assert run.returncode == 1
    assert run.stderr.startswith(f"setup: $PYTHON ({old}) is not a Python 3.12 or newer.")


def test_a_shim_that_does_not_run_is_passed_over(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    path = _tools(tools)
    _program(
        tools / "python3.13", "#!/bin/sh\necho 'python3.13: command not found' >&2\nexit 127\n"
    )
    good = tmp_path / "home/.pyenv/versions/3.12.9/bin/python"
    _program(good, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    run = _setup(clone, PATH=path, HOME=str(tmp_path / "home"))
    assert run.returncode == 0, run.stderr


def test_without_any_python_it_says_what_to_do(clone: Path, tmp_path: Path) -> None:
    run = _setup(clone, PATH=_tools(tmp_path / "tools"), HOME=str(tmp_path))
    assert run.returncode == 1
    assert "no Python 3.12 or newer found. Install one, or name it: PYTHON=" in run.stderr
