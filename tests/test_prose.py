"""The first line of each docstring is short and names the thing itself.

Two rules of the house style can be checked by a program: at most 72 characters, and not the form
"X: without it Y would Z".
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("silos", "hybridcloud", "receivers")
LONGEST = 72
WITHOUT = re.compile(r"\bwithout (it|them|this|these)\b", re.IGNORECASE)

FILES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "migrations" not in path.relative_to(ROOT).parts
]


def first_lines(source: str) -> list[tuple[int, str]]:
    """Return the line number and the first line of every docstring in a module's source."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.body[0].lineno, text.splitlines()[0])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented) and (text := ast.get_docstring(node))
    ]


def broken_rules(source: str) -> list[str]:
    """Return what is wrong with the docstrings' first lines, each with its line number."""
    return [
        f"{number}: {problem}: {line}"
        for number, line in first_lines(source)
        for problem, is_broken in (
            (f"{len(line)} characters, not at most {LONGEST}", len(line) > LONGEST),
            ("it says what would be missing, not what it is", WITHOUT.search(line) is not None),
        )
        if is_broken
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_first_lines_of_docstrings_are_short_and_say_what_the_thing_is(path: Path) -> None:
    assert broken_rules(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("opening", ['"""', "class A:\n    '''", "def a():\n    '''"])
def test_a_long_first_line_is_found_wherever_it_stands(opening: str) -> None:
    quotes = opening[-3:]
    assert broken_rules(f"{opening}{'x' * LONGEST}{quotes}\n") == []
    (found,) = broken_rules(f"{opening}{'x' * (LONGEST + 1)}{quotes}\n")
    assert "73 characters" in found


def test_the_form_without_it_is_found_in_the_first_line_only() -> None:
    (found,) = broken_rules('"""A lock; Without it, two would meet."""')
    assert found.startswith("1: it says what would be missing")
    assert broken_rules('"""A lock.\n\nNothing works without it.\n"""') == []
    assert broken_rules('"""A lock without items."""') == []
