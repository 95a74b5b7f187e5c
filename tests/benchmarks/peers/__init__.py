"""Runs the peers, each in a process and a database of its own.

Each program beside this file fills its queue, drains it and prints the seconds of
the draining. It does so as the peer's documentation says to run a worker that stops
when nothing is left. The programs run in an environment of their own, so they import
nothing of this repository.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.benchmarks import environments, world

if TYPE_CHECKING:
    from tests.benchmarks.shapes import Shape

_TIMEOUT = 600


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer with one choice of its settings.

    Attributes:
        program: the file beside this one, without its suffix.
        options: what the program is told in addition to the shape.
    """

    program: str
    options: tuple[tuple[str, Any], ...] = ()

    def rate(self, shape: Shape, *, handler_ms: float = 0) -> float:
        """Fill and drain in a fresh database; return messages drained per second.

        Only the draining is timed.
        """
        python = environments.peers()
        _fresh_database()
        told = {
            "dsn": world.dsn(world.US, name=world.PEER_DATABASE),
            "rows": list(shape.rows()),
            "handler_ms": handler_ms,
            **dict(self.options),
        }
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name(f"{self.program}.py"))],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.program} failed:\n{done.stderr[-3000:]}")
        said = json.loads(done.stdout.strip().splitlines()[-1])
        if said["calls"] != shape.count:
            raise AssertionError(
                f"{self.program}: {said['calls']} handler calls instead of {shape.count}"
            )
        return shape.count / float(said["seconds"])


def _fresh_database() -> None:
    with psycopg.connect(world.dsn(world.US), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{world.PEER_DATABASE}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{world.PEER_DATABASE}"')
        connection.execute("CHECKPOINT")


def drop_database() -> None:
    """Drop the peers' database."""
    with psycopg.connect(world.dsn(world.US), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{world.PEER_DATABASE}" WITH (FORCE)')


def versions() -> dict[str, str]:
    """Return the peers' versions."""
    code = (
        "import json; from importlib.metadata import version as v;"
        "print(json.dumps({n: v(n) for n in ('procrastinate', 'pgqueuer', 'django-reliable-outbox')}))"
    )
    done = subprocess.run(
        [str(environments.peers()), "-c", code], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))
