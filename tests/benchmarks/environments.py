"""Makes separate environments, from hashed locks, for peers and plots."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
RUN = ROOT / ".run" / "bench"
_ENVIRONMENTS = ROOT / ".run" / "bench-envs"


def python_of(name: str, lock: Path) -> Path:
    """Return an environment's interpreter, rebuilt if its lock has changed.

    Raises:
        CalledProcessError: it could not be made, for example without a package index.
    """
    folder = _ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        uv = [sys.executable, "-m", "uv"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        venv = [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]
        subprocess.run(venv, check=True)
        install = [*uv, "pip", "install", "--quiet", "--python", str(python)]
        subprocess.run([*install, "--require-hashes", "-r", str(lock)], check=True)
        stamp.write_text(wanted)
    return python


def peers() -> Path:
    """Return the interpreter of the peers' environment."""
    return python_of("peers", HERE / "peers" / "requirements.lock")


def plots() -> Path:
    """Return the interpreter of the plots' environment."""
    return python_of("plots", HERE / "plots.lock")
