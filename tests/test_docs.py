"""The documentation is right: code blocks run, links lead somewhere, what is named exists."""

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

from .rules import PAGE as ENGINE
from .rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# What only the machine of a developer has.
OUTSIDE = re.compile(rb"\.\./shared|/[w]ork/")
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


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


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


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub and MyST make them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _without_code(page.read_text("utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return found


def _broken(page: Path, target: str) -> str | None:
    """Say what is wrong with a relative link of a page; None: nothing."""
    name, _, anchor = target.partition("#")
    there = (page.parent / name).resolve() if name else page
    if not there.is_relative_to(ROOT):
        return "outside of the repository"
    if not there.exists():
        return "no such file"
    if anchor and (there.suffix != ".md" or anchor not in _anchors(there)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    targets = LINK.findall(_without_code(page.read_text(encoding="utf-8")))
    relative = [each for each in targets if not re.match(r"[a-z]+:", each)]
    broken = {each: why for each in relative if (why := _broken(page, each)) is not None}
    assert broken == {}


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("page.md", None),
        ("page.md#a-heading-of-code-and-a-link", None),
        ("#twice-1", None),
        ("page.md#in-a-block", "no such heading"),
        ("page.md#twice-2", "no such heading"),
        ("other.md", "no such file"),
        ("../other.md", "outside of the repository"),
    ],
)
def test_a_broken_link_is_found(
    target: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading, of `code` and [a link](https://example.com)\n## Twice\n## Twice\n"
        "```\n# In a block\n```\n"
    )
    assert _broken(page, target) == why


def test_no_file_names_a_path_outside_of_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert files
    wrong = [_name(each) for each in files if each.is_file() and OUTSIDE.search(each.read_bytes())]
    assert wrong == []


def test_the_engines_page_names_files_that_exist() -> None:
    named = re.findall(r"`(\w+/[\w/]*\.py)`", ENGINE.read_text(encoding="utf-8"))
    assert len(named) > 30
    # Paths are inside the engine's folder, but for those of tests and of what is around it.
    missing = {
        each
        for each in named
        if not (ROOT / each).is_file() and not (ROOT / "hybridcloud" / "outbox" / each).is_file()
    }
    assert missing == set()


def test_the_engines_page_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", ENGINE.read_text(encoding="utf-8")))
    assert len(named) > 30
    there = {module.name for module in (ROOT / "tests" / "hybridcloud" / "outbox").iterdir()}
    for module in (ROOT / "tests").rglob("test_*.py"):
        there.update(re.findall(r"^ *def (test_\w+)\(", module.read_text("utf-8"), re.MULTILINE))
    assert named - there == set()


@pytest.mark.parametrize("number", RULES)
def test_the_engines_page_names_all_that_proves_a_rule(number: int) -> None:
    section = ENGINE.read_text("utf-8").partition(f"### Rule {number}\n")[2].partition("\n#")[0]
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", section.partition("\nProved in ")[2]))
    whole = re.compile(rf"^pytestmark = .*mark\.rule\({number}\)", re.MULTILINE)
    single = re.compile(
        rf"^@pytest\.mark\.rule\({number}\)\n(?:[@ )].*\n)*def (test_\w+)\(", re.MULTILINE
    )
    marked = set()
    for module in (ROOT / "tests").rglob("test_*.py"):
        source = module.read_text("utf-8")
        marked.update({module.name} if whole.search(source) else (), single.findall(source))
    assert named == marked
