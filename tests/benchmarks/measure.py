"""Takes comparable measurements, in alternating runs."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LEAST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 6),
            "min": round(min(self.values), 6),
            "max": round(max(self.values), 6),
            "runs": len(self.values),
        }


def alternate(
    candidates: Mapping[str, Callable[[], float]],
    *,
    runs: int,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Measured]:
    """Measure each candidate ``runs`` times, alternating.

    Every other round is in reverse order. So a slow phase of the machine affects
    all candidates.
    """
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(runs):
        names = list(candidates)
        for name in names if number % 2 == 0 else reversed(names):
            tell(f"{name} (run {number + 1} of {runs})")
            values[name].append(candidates[name]())
    return {name: Measured(tuple(each)) for name, each in values.items()}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two medians, and its target.

    Attributes:
        what: what was compared, in words.
        value: the ratio.
        least: the lowest good value; None: no such bound.
        most: the highest good value; None: no such bound.
    """

    what: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def is_target(self) -> bool:
        return self.least is not None or self.most is not None

    @property
    def reached(self) -> bool:
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"what": self.what, "value": round(self.value, 4)}
        if self.least is not None:
            found["at_least"] = self.least
        if self.most is not None:
            found["at_most"] = self.most
        return found | ({"reached": self.reached} if self.is_target else {})


@dataclass(slots=True)
class Results:
    """The results of a benchmark.

    Attributes:
        name: the benchmark's name.
        runs: how often each figure was measured.
        medians: figures by key, such as ``100x100/ours`` in messages per second.
        units: their units, by key.
        ratios: comparisons by key.
        notes: what a reader must know about them.
    """

    name: str
    runs: int
    medians: dict[str, Measured] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, key: str, measured: Measured | Sequence[float], unit: str, *, count: int | None = None
    ) -> None:
        """Add a figure; ``count``: how many messages or rows each run had."""
        self.medians[key] = (
            measured if isinstance(measured, Measured) else Measured(tuple(measured))
        )
        self.units[key] = unit
        if count is not None:
            self.counts[key] = count

    def compare(
        self,
        key: str,
        what: str,
        value: float,
        *,
        least: float | None = None,
        most: float | None = None,
    ) -> None:
        """Add a comparison."""
        self.ratios[key] = Ratio(what, value, least, most)

    def median(self, key: str) -> float:
        return self.medians[key].median

    def paired(self, key: str, base: str) -> float:
        """Return the median of the ratios of runs that were made in the same turn."""
        turns = zip(self.medians[key].values, self.medians[base].values, strict=True)
        return statistics.median(own / other for own, other in turns)

    @property
    def missed(self) -> list[str]:
        return [key for key, ratio in self.ratios.items() if not ratio.reached]

    def as_json(self, machine: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": self.name,
            "machine": dict(machine),
            "runs": self.runs,
            "medians": {
                key: {
                    **measured.as_json(),
                    "unit": self.units[key],
                    **({"count": self.counts[key]} if key in self.counts else {}),
                }
                for key, measured in self.medians.items()
            },
            "ratios": {key: ratio.as_json() for key, ratio in self.ratios.items()},
            "notes": self.notes,
        }


def describe_machine(dsn: str) -> dict[str, Any]:
    """Return the facts of the machine that the figures depend on."""
    with psycopg.connect(dsn) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
            for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        }
    return {
        "processor": _processor(),
        "cores": _cores(),
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": psycopg.__version__,
        "postgresql": shown.pop("server_version"),
        **shown,
    }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
