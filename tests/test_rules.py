"""The report of the nine rules: it says what each rule is, and a rule without a proof fails the run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .rules import PAGE, RULES, words_of_rules

ROOT = Path(__file__).parent.parent

_ALL = "import pytest\n" + "".join(
    f"@pytest.mark.rule({number})\ndef test_of_rule_{number}(): pass\n" for number in RULES
)
_PAGE = "".join(f"### Rule {number}\n\n**Words of\n{number}.** More.\n\n" for number in RULES)


def _run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = rule(n): a rule\n")
    plugins = ["-p", "tests.rules", "-p", "no:django", "-p", "no:hybridcloud", "-p", "no:randomly"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *arguments, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def _proofs(output: str) -> dict[int, str]:
    """Return what a run printed below each rule."""
    return {
        int(n): names for n, names in re.findall(r"^rule (\d): .+\n    (.+)$", output, re.MULTILINE)
    }


def test_a_run_with_a_proof_for_each_rule_passes_and_names_them(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL, "--require-rules")
    assert run.returncode == 0, run.stdout
    assert _proofs(run.stdout) == {number: f"test_of_rule_{number}" for number in RULES}


def test_a_run_prints_what_each_rule_says(tmp_path: Path) -> None:
    words = words_of_rules(PAGE)
    assert list(words) == list(RULES)
    run = _run(tmp_path, _ALL, "--require-rules")
    assert re.findall(r"^rule (\d): (.+)$", run.stdout, re.MULTILINE) == [
        (str(number), said) for number, said in words.items()
    ]


def test_the_words_of_a_rule_are_the_sentence_in_bold_type_below_its_heading(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text(_PAGE)
    assert words_of_rules(page) == {number: f"Words of {number}." for number in RULES}


@pytest.mark.parametrize(
    ("there", "instead"), [("### Rule 4", "### Another"), ("**Words of\n4.**", "Words of 4.")]
)
def test_a_page_that_does_not_say_each_rule_is_refused(
    tmp_path: Path, there: str, instead: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(_PAGE.replace(there, instead))
    with pytest.raises(pytest.UsageError, match="not 1 to 9"):
        words_of_rules(page)


def test_a_rule_without_a_test_fails_the_run(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL.replace("rule(4)", "rule(5)"), "--require-rules")
    assert run.returncode == 1
    assert _proofs(run.stdout)[4] == "NO TEST PASSED"
    assert _proofs(run.stdout)[5] == "test_of_rule_4, test_of_rule_5"


def test_a_skipped_test_proves_nothing(tmp_path: Path) -> None:
    source = _ALL.replace("test_of_rule_7(): pass", "test_of_rule_7(): pytest.skip('not here')")
    assert _run(tmp_path, source, "--require-rules").returncode == 1


def test_a_partial_run_need_not_prove_every_rule(tmp_path: Path) -> None:
    assert _run(tmp_path, _ALL.replace("rule(4)", "rule(5)")).returncode == 0


def test_the_report_works_in_parallel_runs(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL, "--require-rules", "-n", "2")
    assert run.returncode == 0, run.stdout
    assert _proofs(run.stdout)[1] == "test_of_rule_1"


def test_a_number_that_is_no_rule_is_refused(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL.replace("rule(4)", "rule(10)"))
    assert run.returncode == 4
    assert "is none of the rules 1 to 9" in run.stderr
