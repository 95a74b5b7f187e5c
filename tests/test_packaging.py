"""Looks into the wheel and the lock files: what users install, and what they must not get."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"silos", "hybridcloud", "receivers"}
LOCKS = ("requirements.lock", "requirements-oldest.lock")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_says_that_each_package_is_typed(wheel: zipfile.ZipFile) -> None:
    marks = {name for name in wheel.namelist() if name.endswith("py.typed")}
    assert marks == {f"{package}/py.typed" for package in PACKAGES}


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= set(wheel.namelist())


def test_the_wheel_offers_the_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "[pytest11]\nhybridcloud = hybridcloud.testutils.plugin" in wheel.read(name).decode()


def test_the_wheel_leaves_the_choice_of_libpq_to_the_application(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(name).decode().splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist: ")]
    assert [line for line in required if "extra ==" not in line and "binary" in line] == []
    assert "Requires-Dist: psycopg[pool]<3.4,>=3.2.4" in required
    for extra in ("binary", "embedded"):
        assert f"Requires-Dist: psycopg[binary]<3.4,>=3.2.4; extra == '{extra}'" in required


def test_the_range_of_psycopg_is_the_same_wherever_it_is_named() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ranges = re.findall(r'"psycopg\[\w+\](.*?)"', text)
    assert len(ranges) == 3
    assert len(set(ranges)) == 1


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_psycopgs_binary(name: str) -> None:
    assert re.search(r"^psycopg-binary==", (ROOT / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_hashes_has_hashes_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    entries = re.findall(r"^[\w.-]+==.*(?:\n +--hash=sha256:[0-9a-f]{64}.*)*", text, re.MULTILINE)
    assert entries
    assert [entry for entry in entries if "--hash" not in entry] == []


@pytest.mark.parametrize("dependency", ["django", "psycopg", "celery", "redis", "pydantic"])
def test_the_oldest_lock_holds_the_oldest_release_that_is_claimed(dependency: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (claim,) = (
        claim
        for claim in project["dependencies"]
        if re.match(rf"{dependency}(\[[\w,]+\])?>=", claim)
    )
    oldest = claim.partition(">=")[2].partition(",")[0]
    locked = re.search(
        rf"^{dependency}==([\w.]+)", (ROOT / "requirements-oldest.lock").read_text(), re.MULTILINE
    )
    assert locked is not None
    assert locked[1].removesuffix(".0") == oldest.removesuffix(".0")
