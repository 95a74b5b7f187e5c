"""The report of the nine rules: a rule whose proof is gone must fail the run, not only look bad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

_ALL = "import pytest\n" + "".join(
    f"@pytest.mark.rule({number})\ndef test_of_rule_{number}(): pass\n" for number in range(1, 10)
)


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


def test_a_run_with_a_proof_for_each_rule_passes_and_names_them(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL, "--require-rules")
    assert run.returncode == 0, run.stdout
    assert "rule 9: test_of_rule_9" in run.stdout


def test_a_rule_without_a_test_fails_the_run(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL.replace("rule(4)", "rule(5)"), "--require-rules")
    assert run.returncode == 1
    assert "rule 4: NO TEST PASSED" in run.stdout
    assert "rule 5: test_of_rule_4, test_of_rule_5" in run.stdout


def test_a_skipped_test_proves_nothing(tmp_path: Path) -> None:
    source = _ALL.replace("test_of_rule_7(): pass", "test_of_rule_7(): pytest.skip('not here')")
    assert _run(tmp_path, source, "--require-rules").returncode == 1


def test_a_partial_run_need_not_prove_every_rule(tmp_path: Path) -> None:
    assert _run(tmp_path, _ALL.replace("rule(4)", "rule(5)")).returncode == 0


def test_the_report_works_in_parallel_runs(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL, "--require-rules", "-n", "2")
    assert run.returncode == 0, run.stdout
    assert "rule 1: test_of_rule_1" in run.stdout


def test_a_number_that_is_no_rule_is_refused(tmp_path: Path) -> None:
    run = _run(tmp_path, _ALL.replace("rule(4)", "rule(10)"))
    assert run.returncode == 4
    assert "is none of the rules 1 to 9" in run.stderr
