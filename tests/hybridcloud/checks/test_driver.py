"""A missing libpq is told before anything else fails, with the line that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from django.core.checks import run_checks

from hybridcloud.checks.driver import check_driver, require_driver
from hybridcloud.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = """
SECRET_KEY = "a reader's"
INSTALLED_APPS = [
    "django.contrib.contenttypes", "django.contrib.auth", "silos", "hybridcloud", "receivers",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}}
DATABASE_ROUTERS = ["silos.router.SiloRouter"]
HYBRIDCLOUD = {"SILO_MODE": "MONOLITH", "REDIS_URL": "redis://127.0.0.1"}
"""

# As where only `psycopg` was installed: none of its implementations, no libpq of the system.
_CHECK = """
import ctypes.util, sys
sys.modules["psycopg_binary"] = sys.modules["psycopg_c"] = None
ctypes.util.find_library = lambda name: None
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "check"])
"""


def manage_check(
    folder: Path, code: str = _CHECK, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "shop_settings.py").write_text(_SETTINGS, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "PSYCOPG_IMPL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, "DJANGO_SETTINGS_MODULE": "shop_settings", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_psycopg_loads_here() -> None:
    assert check_driver() == []
    require_driver()
    assert "hybridcloud.E047" not in {each.id for each in run_checks()}


def test_manage_check_names_the_line_that_installs_libpq(tmp_path: Path) -> None:
    run = manage_check(tmp_path)
    assert run.returncode != 0
    message, hint = run.stderr.splitlines()[-2:]
    assert message == (
        "hybridcloud.errors.ConfigurationError: hybridcloud: (hybridcloud.E047) "
        f"psycopg does not load in {sys.prefix}: no pq wrapper available."
    )
    assert hint.startswith(
        '\tHINT: Install libpq with it: pip install "hybridcloud[binary]". Instead of this, '
    )


def test_manage_check_shows_what_psycopg_tried(tmp_path: Path) -> None:
    # And Django's own words for it, which name no way out, are never reached.
    run = manage_check(tmp_path)
    assert "couldn't import psycopg 'python' implementation: libpq library not found" in run.stderr
    assert "Error loading psycopg2 or psycopg module" not in run.stderr


def test_manage_check_names_the_variable_that_forbids_the_others(tmp_path: Path) -> None:
    run = manage_check(tmp_path, PSYCOPG_IMPL="c")
    assert "couldn't import requested psycopg 'c' implementation" in run.stderr
    assert run.stderr.endswith(" PSYCOPG_IMPL=c forbids all but one of them.\n")


def test_without_the_block_the_same_project_is_fine(tmp_path: Path) -> None:
    run = manage_check(tmp_path, code="\n".join(_CHECK.splitlines()[-2:]))
    assert run.returncode == 0, run.stderr
    assert "E047" not in run.stderr


def test_e047_where_psycopg_itself_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    (found,) = check_driver()
    assert found.id == "hybridcloud.E047"
    assert "import of psycopg halted" in found.msg
    with pytest.raises(ConfigurationError, match=r"hybridcloud\[binary\]"):
        require_driver()


def test_the_version_needs_no_libpq(tmp_path: Path) -> None:
    code = _CHECK.partition("from django")[0] + "import hybridcloud; print(hybridcloud.__version__)"
    run = manage_check(tmp_path, code=code)
    assert run.returncode == 0, run.stderr
