"""Prints results for people, and stores them as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.environments import RUN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.benchmarks.measure import Ratio, Results

console = Console(width=130, soft_wrap=False)


def tell(what: str) -> None:
    """Print what is being measured."""
    console.print(f"[dim]  {what}[/dim]")


def keep(results: Results, machine: Mapping[str, Any]) -> None:
    """Print the tables and write ``.run/bench/<name>.json``."""
    RUN.mkdir(parents=True, exist_ok=True)
    path = RUN / f"{results.name}.json"
    path.write_text(json.dumps(results.as_json(machine), indent=2) + "\n")
    console.print(_figures(results))
    if results.ratios:
        console.print(verdicts(results.ratios.items(), title=f"{results.name}: ratios"))
    for note in results.notes:
        console.print(f"  {note}")


def _figures(results: Results) -> Table:
    table = Table(title=f"{results.name}: medians of {results.runs} alternating runs")
    for column in ("what", "median", "min", "max", "unit", "messages"):
        table.add_column(column, justify="left" if column in {"what", "unit"} else "right")
    for key, measured in results.medians.items():
        table.add_row(
            key,
            number(measured.median),
            number(min(measured.values)),
            number(max(measured.values)),
            results.units[key],
            f"{results.counts[key]:,}" if key in results.counts else "",
        )
    return table


def verdicts(ratios: Iterable[tuple[str, Ratio]], *, title: str) -> Table:
    """Make the table of comparisons, with reached and missed targets."""
    table = Table(title=title)
    for column in ("what", "value", "target", "result"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for _, ratio in ratios:
        bound = ""
        if ratio.least is not None:
            bound = f"≥ {number(ratio.least)}"
        if ratio.most is not None:
            bound = f"≤ {number(ratio.most)}"
        result = ""
        if ratio.is_target:
            result = "[green]reached[/green]" if ratio.reached else "[bold red]MISSED[/bold red]"
        table.add_row(ratio.what, number(ratio.value), bound, result)
    return table


def number(value: float) -> str:
    """Return a figure with three significant digits, or as an integer."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
