"""Tests the wheel as users get it: installed, in a folder that holds no checkout.

The environment made here has the wheel and nothing else. Its path then names the packages of
`.venv`, but as a plain folder: `.pth` files there are not read, and so the editable install of the
checkout is not on the path. The suite runs on copies of `tests` and `fixtures`; `wheel_origin.py`
among them asserts where each module came from.

Arguments replace the tests that run: `python .ci/wheel.py tests/acme -q`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# They need the migrations, the SQL in files, the receivers and the calls between silos.
TESTS = ("tests/acme", "tests/test_api.py", "-q")
ORIGIN = "tests/wheel_origin.py"


def main(arguments: list[str]) -> int:
    """Build, install and test the wheel; return the suite's exit status."""
    with tempfile.TemporaryDirectory(prefix="hybridcloud wheel ") as name:
        folder = Path(name)
        python = _install(_build(folder / "dist"), folder / "environment")
        elsewhere = _copy_tests(folder / "elsewhere")
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", ORIGIN, *(arguments or TESTS)]
        return subprocess.run(
            [python, "-m", "fixtures.servers", "run", "--", *pytest],
            cwd=elsewhere,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            check=False,
        ).returncode


def _build(folder: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(wheel: Path, folder: Path) -> Path:
    """Return the interpreter of a new environment with the wheel and with what it depends on."""
    uv = (sys.executable, "-m", "uv", "--quiet", "--offline")
    _run(*uv, "venv", "--python", sys.executable, folder)
    python = folder / "bin/python"
    _run(*uv, "pip", "install", "--python", python, "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _copy_tests(folder: Path) -> Path:
    for name in ("tests", "fixtures"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    # The configuration of pytest.
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _run(*command: str | Path) -> None:
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
