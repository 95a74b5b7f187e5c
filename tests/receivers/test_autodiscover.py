"""An app's receivers are imported by themselves; without it a forgotten import would park every message."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from django.test import override_settings

from fixtures.acme import outbox_receivers
from fixtures.acme.categories import Category
from hybridcloud.checks.handlers import receivers_of
from hybridcloud.outbox import process_cell_outbox
from receivers.autodiscover import import_receivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def make_app(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Return a function that makes an app with an `outbox_receivers` of the given text."""
    made: list[str] = []

    def make(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "outbox_receivers.py").write_text(text)
        made.append(name)

    sys.path.insert(0, str(tmp_path))
    yield make
    sys.path.remove(str(tmp_path))
    for module in [each for each in sys.modules if each.partition(".")[0] in made]:
        del sys.modules[module]


def test_the_receivers_of_an_installed_app_are_connected() -> None:
    assert [*receivers_of(process_cell_outbox, Category.TEAM_UPDATE)] == [
        outbox_receivers.process_team_update
    ]


def test_an_app_is_imported_wherever_it_stands(make_app: Callable[[str, str], None]) -> None:
    make_app("late_app", "HEARD = True")
    with override_settings(INSTALLED_APPS=["late_app"]):
        import_receivers()
    assert sys.modules["late_app.outbox_receivers"].__dict__["HEARD"] is True


def test_an_error_in_a_receivers_module_comes_through(
    make_app: Callable[[str, str], None],
) -> None:
    make_app("broken_app", "import a_package_that_nobody_has")
    with (
        override_settings(INSTALLED_APPS=["broken_app"]),
        pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"),
    ):
        import_receivers()
