"""Draws the plots.

`plots` runs it in an environment of its own, so it imports nothing of this repository.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
# The same results make the same file, with text that a browser can search.
mpl.rcParams.update({"svg.hashsalt": "hybridcloud", "svg.fonttype": "none", "font.size": 10})

import matplotlib.pyplot as plt

OURS, OTHER = "#1f6f8b", "#b0b7bd"


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def _error(each: dict[str, Any]) -> tuple[list[float], list[float]]:
    return [each["median"] - each["min"]], [each["max"] - each["median"]]


def bars(
    medians: dict[str, Any], keys: list[str], title: str, unit: str, path: Path, *, log: bool
) -> None:
    """Draw horizontal bars with their minimum and maximum."""
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(keys) + 1.2))
    for place, key in enumerate(reversed(keys)):
        each = medians[key]
        name = key.rpartition("/")[2]
        axes.barh(
            place,
            each["median"],
            xerr=_error(each),
            color=OURS
            if "ours" in name or "calls a batch" in name or "triggered" in name
            else OTHER,
            ecolor="#555555",
        )
    axes.set_yticks(range(len(keys)), [key.rpartition("/")[2] for key in reversed(keys)])
    if log:
        axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def of_group(medians: dict[str, Any], group: str) -> list[str]:
    return [key for key in medians if key.rpartition("/")[0] == group]


def drain(medians: dict[str, Any], folder: Path) -> None:
    for group in ("10000x1", "1x10000", "1x10000 on 10", "100x100"):
        name = group.replace(" ", "-")
        bars(
            medians,
            of_group(medians, group),
            f"Drain, shards x messages: {group}",
            "messages a second (log)",
            folder / f"drain-{name}.svg",
            log=True,
        )


def write(medians: dict[str, Any], folder: Path) -> None:
    for group in ("one row", "ten rows", "bulk", "flush"):
        name = group.replace(" ", "-")
        keys = of_group(medians, group)
        bars(
            medians, keys, f"Writing: {group}", "µs a row", folder / f"write-{name}.svg", log=False
        )


def due(medians: dict[str, Any], folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("ours, 100", "ours, 1000", "per message, all"):
        points = sorted(
            (int(key.partition("/")[0]), each["median"])
            for key, each in medians.items()
            if key.partition("/")[2] == name and key[0].isdigit() and "shards" not in key
        )
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            label=name,
            color=None if "per" not in name else OTHER,
        )
    axes.set(xscale="log", yscale="log", xlabel="messages that wait", ylabel="ms")
    axes.set_title("Finding due shards")
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, folder / "due.svg")


def bloat(medians: dict[str, Any], folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("free", "held snapshot"):
        values = [
            each["median"] for key, each in medians.items() if key.startswith(f"{name}/sixth")
        ]
        axes.plot(range(1, len(values) + 1), values, marker="o", label=name)
    axes.set(xlabel="sixth of the run", ylabel="messages a second of busy time", ylim=(0, None))
    axes.set_title("Capacity under steady writing")
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, folder / "bloat.svg")


def rpc(medians: dict[str, Any], folder: Path) -> None:
    bars(
        medians,
        list(medians),
        "A call to another silo",
        "µs a call (log)",
        folder / "rpc.svg",
        log=True,
    )


def main() -> None:
    results, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for draw in (drain, write, due, bloat, rpc):
        path = results / f"{draw.__name__}.json"
        if path.exists():
            draw(json.loads(path.read_text())["medians"], folder)


main()
