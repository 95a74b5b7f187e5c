"""Holds the shape of the code: size, names and imports of files, which no linter looks at."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = ("silos", "hybridcloud", "receivers")
FILES = sorted(
    path
    for folder in (*SHIPPED, "fixtures", "tests", ".ci")
    for path in (ROOT / folder).rglob("*.py")
)
SHIPPED_FILES = [path for path in FILES if path.relative_to(ROOT).parts[0] in SHIPPED]

_MOST_LINES = 400
_MOST_LINES_OF_A_FUNCTION = 60
_MOST_IMPORT_S = 0.06


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _comments(source: str) -> dict[int, str]:
    """Return the comments by line, without what they say to linters and type checkers."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = re.sub(r"noqa(: ?[A-Z0-9, ]+)?|type: ?ignore(\[[\w, -]+\])?", "", token.string)
            found[token.start[0]] = text.strip("# -()")
    return found


def _local_imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def unexplained_imports(source: str) -> list[int]:
    """Return the lines of imports inside functions that do not say why they are there.

    The reason stands beside the import, or above it or above the imports that
    it follows.
    """
    comments, text, lines = _comments(source), source.splitlines(), {}
    for node in _local_imports(ast.parse(source)):
        reason = any(comments.get(line) for line in (node.lineno, node.end_lineno or node.lineno))
        above = node.lineno - 1
        while not text[above - 1].strip():
            above -= 1
        explained = reason or bool(comments.get(above)) or lines.get(above, False)
        lines[node.end_lineno or node.lineno] = explained
        lines[node.lineno] = explained
    return sorted(line for line, explained in lines.items() if not explained)


# A migration is as long as Django makes it.
@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "migrations"], ids=_name)
def test_a_file_is_one_idea_in_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= _MOST_LINES


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=_name)
def test_a_function_has_at_most_60_lines(path: Path) -> None:
    long = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= _MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_module_is_named_after_what_it_is(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_an_import_inside_a_function_says_why(path: Path) -> None:
    if "tests" not in path.relative_to(ROOT).parts:
        assert unexplained_imports(path.read_text()) == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("import os", [2]),
        ("import os  # noqa: PLC0415", [2]),
        ("import os  # optional dependency", []),
        ("import os  # noqa: PLC0415 - optional dependency", []),
        ("# optional dependency\n    import os\n    import re", []),
        ("# Django app registry\n    import os\n\n    import re", []),
        ("pass\n    from os import (  # Django app registry\n        path,\n    )", []),
    ],
)
def test_the_search_for_unexplained_imports_finds_them(body: str, lines: list[int]) -> None:
    assert unexplained_imports(f"def function():\n    {body}\n") == lines


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    # A migration is named by its file.
    if "migrations" not in path.parts:
        assert ast.get_docstring(ast.parse(path.read_text()))


def test_importing_hybridcloud_costs_little_more_than_django() -> None:
    code = (
        "import time, django.apps, django.conf, django.db.models, django.dispatch\n"
        "begin = time.perf_counter(); import hybridcloud; print(time.perf_counter() - begin)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    # The least of several: everything else on the machine only ever adds.
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(5)]
    assert min(float(run.stdout) for run in runs) < _MOST_IMPORT_S


ENGINE_FILES = [path for path in SHIPPED_FILES if "hybridcloud/outbox/" in path.as_posix()]
FOLDERS = sorted({path.parent for path in SHIPPED_FILES if path.parent.name != "migrations"})


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_a_folder_has_at_most_16_modules(folder: Path) -> None:
    assert len([each for each in folder.glob("*.py") if each.name != "__init__.py"]) <= 16


@pytest.mark.parametrize("path", SHIPPED_FILES, ids=_name)
def test_a_path_has_at_most_four_parts(path: Path) -> None:
    # A command lies where Django looks for it.
    assert len(path.relative_to(ROOT).parts) <= 4


def test_no_two_modules_of_the_engine_are_told_apart_by_a_suffix() -> None:
    # The two former paths, which only export what is in the rooms, are named as the rooms' modules.
    former = {ROOT / "hybridcloud/outbox/category.py", ROOT / "hybridcloud/outbox/tasks.py"}
    stems = [
        path.stem for path in ENGINE_FILES if path.name != "__init__.py" and path not in former
    ]
    alike = {stem[:5]: [each for each in stems if each[:5] == stem[:5]] for stem in stems}
    assert {start: found for start, found in alike.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", ENGINE_FILES, ids=_name)
def test_a_module_of_the_engine_has_at_most_340_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 340


def test_the_reading_order_for_newcomers_exists_and_is_short() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Reading order")[2].partition("\n## ")[0]
    files = re.findall(r"^\d+\. `(hybridcloud/[\w/]+\.py)`", section, re.MULTILINE)
    assert len(files) == 8
    assert (
        sum(len((ROOT / name).read_text().splitlines()) for name in files) < 2150
    )  # 2,000 is the aim
