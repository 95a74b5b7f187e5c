"""A process that reads an option; without it following a change would be shown inside one process only."""

from __future__ import annotations

import subprocess
import sys
from time import monotonic, sleep
from typing import Self

import django


class Reader:
    """Starts the process, and hears what it reads.

    Attributes:
        waited: seconds from the change to its being seen there.
    """

    def __init__(self, key: str) -> None:
        from tests.hybridcloud.outbox.engine import Child

        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hybridcloud.options.process", key],
            stdout=subprocess.PIPE,
            text=True,
            env=Child.environment(),
        )
        self.waited = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def value(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def value_after_change(self, limit: float) -> int:
        started = monotonic()
        found = self.value()
        self.waited = monotonic() - started
        assert self.waited < limit
        return found


def main(key: str) -> None:
    """Print the option's value whenever it changes."""
    django.setup()
    from hybridcloud import options
    from silos import SiloMode, assume_silo
    from tests.hybridcloud.options import keys

    assert keys.LIMIT
    last = None
    with assume_silo(SiloMode.CELL, cell="us"):
        while True:
            value = options.get(key)
            if value != last:
                print(value, flush=True)  # noqa: T201 - what the test hears
                last = value
            sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
