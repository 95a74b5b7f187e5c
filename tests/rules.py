"""Shows which tests prove each rule of the engine, and fails a full run in which one has none.

The words of a rule are those of docs/explanation/engine.md: a heading for each rule, and below it
one sentence in bold type.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.terminal import TerminalReporter

RULES = range(1, 10)
PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "engine.md"
_PROPERTY = "rule"
_RULE = re.compile(r"^### Rule (\d+)\n\n\*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-rules",
        action="store_true",
        help="fail if one of the nine rules of the engine has no test that passed",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The workers of xdist send their reports to the process that was started by hand.
    if config.getoption("--require-rules") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RuleReport(words_of_rules(PAGE)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("rule"):
            item.user_properties += [(_PROPERTY, number) for number in _numbers(item, mark)]


def words_of_rules(page: Path) -> dict[int, str]:
    """Return what each rule says, by its number.

    Raises:
        pytest.UsageError: the page does not say what the nine rules are.
    """
    text = page.read_text(encoding="utf-8")
    words = {int(number): " ".join(said.split()) for number, said in _RULE.findall(text)}
    if list(words) != list(RULES):
        raise pytest.UsageError(
            f"Rules {list(words)} in {page}, not 1 to 9. Give each a heading '### Rule n' and, below "
            f"it, one sentence in bold type."
        )
    return words


def _numbers(item: pytest.Item, mark: pytest.Mark) -> Iterable[int]:
    wrong = [number for number in mark.args if number not in RULES]
    if wrong or not mark.args:
        raise pytest.UsageError(f"{item.nodeid}: rule({wrong}) is none of the rules 1 to 9.")
    return mark.args


class RuleReport:
    """Collects the tests that passed, by rule, and judges at the end.

    Args:
        words: what each rule says, by its number.
    """

    def __init__(self, words: dict[int, str]) -> None:
        self.proofs: dict[int, set[str]] = defaultdict(set)
        self._words = words

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for key, number in report.user_properties:
                if key == _PROPERTY:
                    name = report.nodeid.rpartition("::")[2].partition("[")[0]
                    self.proofs[int(str(number))].add(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.unproven():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("the nine rules and their tests")
        for number in RULES:
            names = ", ".join(sorted(self.proofs[number]))
            terminalreporter.line(f"rule {number}: {self._words[number]}", bold=True)
            terminalreporter.line(
                f"    {names or 'NO TEST PASSED'}", red=not names, green=bool(names)
            )

    def unproven(self) -> list[int]:
        return [number for number in RULES if not self.proofs[number]]
