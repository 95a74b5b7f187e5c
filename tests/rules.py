"""Shows which tests prove each correctness rule, and fails a full run in which a rule has none."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.terminal import TerminalReporter

RULES = range(1, 10)
_PROPERTY = "rule"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-rules",
        action="store_true",
        help="fail if one of the nine rules of the engine has no test that passed",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The workers of xdist send their reports to the process that was started by hand.
    if config.getoption("--require-rules") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RuleReport())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("rule"):
            item.user_properties += [(_PROPERTY, number) for number in _numbers(item, mark)]


def _numbers(item: pytest.Item, mark: pytest.Mark) -> Iterable[int]:
    wrong = [number for number in mark.args if number not in RULES]
    if wrong or not mark.args:
        raise pytest.UsageError(f"{item.nodeid}: rule({wrong}) is none of the rules 1 to 9.")
    return mark.args


class RuleReport:
    """Collects the tests that passed, by rule, and judges at the end."""

    def __init__(self) -> None:
        self.proofs: dict[int, set[str]] = defaultdict(set)

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
            terminalreporter.line(
                f"rule {number}: {names or 'NO TEST PASSED'}", red=not names, green=bool(names)
            )

    def unproven(self) -> list[int]:
        return [number for number in RULES if not self.proofs[number]]
