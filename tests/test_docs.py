"""The README's code blocks are a project: it is checked, migrated and its tests run, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.benchmarks.__main__ import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PREAMBLE = """
import os
import dj_database_url
SECRET_KEY = "a reader's"
USE_TZ = True
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"])}
REDIS_URL = os.environ["REDIS_URL"]
CELERY_BROKER_URL = REDIS_URL
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
"""


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Make a database for the reader's project, and drop it."""
    url = os.environ["DATABASE_URL_CONTROL"]
    made = url.rsplit("/", 1)[0] + "/readme"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE readme")
    yield made
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE readme WITH (FORCE)")


def test_the_readmes_code_is_a_project_that_works(tmp_path: Path, database: str) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"settings.py", "shop/models.py", "shop/test_replication.py"} <= {
        name for name, _ in blocks
    }
    for name, code in blocks:
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text((PREAMBLE if name == "settings.py" else "") + code, encoding="utf-8")
    (tmp_path / "shop" / "__init__.py").touch()

    env = {
        **os.environ,
        "DATABASE_URL": database,
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": str(tmp_path),
    }

    def run(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"

    run("django", "check")
    run("django", "makemigrations", "shop")
    run("django", "migrate")
    (tmp_path / "schedule.py").write_text(
        "from shop.celery import app\n"
        "tasks = {entry['task'] for entry in app.conf.beat_schedule.values()}\n"
        "assert len(tasks) == 4, tasks\n",
        encoding="utf-8",
    )
    run("schedule")
    run("pytest", "-q", "-p", "no:cacheprovider", "shop/test_replication.py")


def test_make_help_and_the_page_of_performance_name_each_benchmark() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (helped,) = re.findall(r'^bench: .*\(ARGS="([a-z ]+)"\)$', makefile, re.MULTILINE)
    assert tuple(helped.split()) == NAMES
    page = (ROOT / "docs/explanation/performance.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    make bench ARGS=\w+ +# one of them: (.*)$", page, re.MULTILINE)
    assert tuple(shown.split(", ")) == NAMES


def test_make_targets_that_the_docs_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    # In code only: "make sure" is prose.
    named = {
        (str(page.relative_to(ROOT)), target)
        for page in pages
        for target in re.findall(
            r"(?:`|^    )make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE
        )
    }
    assert named
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_contributings_reading_order_names_files_that_exist_and_stays_short() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"^\d+\. `([^`]+\.py)`", text, re.MULTILINE)
    assert len(files) == 7
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files)
    assert lines < 2500
