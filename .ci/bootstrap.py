"""Makes a virtual environment from a hashed lock.

It uses the standard library only, because it runs before anything is installed. A second run only
compares a stamp.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Make an environment from a lock, unless it is up to date.

    The arguments are the environment's folder and the lock, relative to the repository.
    """
    folder, lock = (ROOT / argument for argument in arguments)
    guard = folder.with_name(f"{folder.name}.lock")
    # The lock file is beside the environment, so that two runs at once cannot both make the folder.
    with guard.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stamp, wanted = folder / "stamp", _fingerprint(folder, lock)
        if not stamp.exists() or stamp.read_text() != wanted:
            try:
                _install(folder, lock)
            except subprocess.CalledProcessError as error:
                command = " ".join(str(part) for part in error.cmd)
                print(f"setup: command failed with status {error.returncode}: {command}")
                return 1
            stamp.write_text(wanted)
    return 0


def _fingerprint(folder: Path, lock: Path) -> str:
    # The folder is included because an environment that was moved or copied does not work.
    facts = hashlib.sha256(f"{folder}\n{sys.version}\n".encode())
    for path in (lock, ROOT / "pyproject.toml", Path(__file__)):
        facts.update(path.read_bytes())
    return facts.hexdigest()


def _install(folder: Path, lock: Path) -> None:
    print(f"setup: {folder.name} from {lock.name}, Python {sys.version.split()[0]}", flush=True)
    python = folder / "bin/python"
    if not _works(python):
        shutil.rmtree(folder, ignore_errors=True)
        _make_environment(folder)
    installer = _find_uv(folder, lock) or [python, "-m", "pip", "install", "--quiet"]
    _run(*installer, "--require-hashes", "-r", lock)
    # The lock has installed the build backend, so the build fetches nothing without a hash.
    _run(*installer, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    code = "import sys; print(sys.prefix)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and Path(done.stdout.strip()) == python.parent.parent


def _make_environment(folder: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    done = subprocess.run(
        [base, "-m", "venv", folder], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 0:
        return
    # Debian's python3 cannot make an environment without python3-venv; uv can.
    shutil.rmtree(folder, ignore_errors=True)
    uv = shutil.which("uv")
    if uv is None:
        sys.exit(f"{done.stdout}\nsetup: cannot make an environment. Install python3-venv or uv.")
    _run(uv, "venv", "--quiet", "--python", base, folder)


def _find_uv(folder: Path, lock: Path) -> list[str | Path] | None:
    """Return uv's install command, or None if uv is not available.

    uv installs ten times faster than pip.
    """
    python = folder / "bin/python"
    found: str | Path | None = shutil.which("uv")
    if found is None:
        found = folder / "bin/uv"
        if not found.exists() and not _install_uv(python, lock):
            return None
    return [found, "pip", "install", "--quiet", "--python", python]


def _install_uv(python: Path, lock: Path) -> bool:
    entry = re.search(r"^uv==.*(?:\n +--hash.*)+", lock.read_text(), re.MULTILINE)
    if entry is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(entry[0] + "\n")
        requirement.flush()
        command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        done = subprocess.run([*command, "-r", requirement.name], check=False)
    return done.returncode == 0


def _run(*command: str | Path) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
