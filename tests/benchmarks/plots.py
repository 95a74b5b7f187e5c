"""Writes the latest results into the documentation's tables and plots.

``make bench-plots``, after ``make bench``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.environments import HERE, ROOT, RUN, plots

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
FOLDER: Final = PAGE.with_suffix("")
_NAMES: Final = ("drain", "write", "due", "wake", "bloat", "rpc", "backfill")


def main() -> int:
    found = {name: _read(name) for name in _NAMES if (RUN / f"{name}.json").exists()}
    if not found:
        print("No results in .run/bench. Run make bench first.")
        return 1
    text = PAGE.read_text()
    text = _fill(text, "machine", _machine(next(iter(found.values()))))
    text = _fill(text, "targets", "\n".join(_targets(found)))
    for name, results in found.items():
        text = _fill(text, name, "\n".join(_figures(results)))
    PAGE.write_text(text)
    FOLDER.mkdir(exist_ok=True)
    command = [str(plots()), str(HERE / "draw.py"), str(RUN), str(FOLDER)]
    return subprocess.run(command, check=False).returncode


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((RUN / f"{name}.json").read_text()))


def _fill(text: str, name: str, content: str) -> str:
    """Replace the content between the marks of a name, if the page has them."""
    marks = rf"(<!-- {name}: made by make bench-plots -->\n).*?(<!-- {name}: end -->)"
    return re.sub(marks, lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text, flags=re.DOTALL)


def _machine(results: dict[str, Any]) -> str:
    return "\n".join(f"- {key}: {value}" for key, value in results["machine"].items())


def _targets(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "| what | target | measured | |"
    yield "| --- | ---: | ---: | --- |"
    for results in found.values():
        for ratio in results["ratios"].values():
            if "reached" not in ratio:
                continue
            bound = f"≥ {ratio['at_least']}" if "at_least" in ratio else f"≤ {ratio['at_most']}"
            verdict = "reached" if ratio["reached"] else "**missed**"
            yield f"| {ratio['what']} | {bound} | {_number(ratio['value'])} | {verdict} |"


def _figures(results: dict[str, Any]) -> Iterator[str]:
    yield "| what | median | min | max | unit | count |"
    yield "| --- | ---: | ---: | ---: | --- | ---: |"
    for key, each in results["medians"].items():
        cells = [key, *(_number(each[name]) for name in ("median", "min", "max")), each["unit"]]
        yield f"| {' | '.join(cells)} | {each.get('count', '')} |"
    others = [ratio for ratio in results["ratios"].values() if "reached" not in ratio]
    if others:
        yield ""
        yield from (f"- {ratio['what']}: {_number(ratio['value'])}" for ratio in others)
    if results["notes"]:
        yield ""
        yield from results["notes"]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
