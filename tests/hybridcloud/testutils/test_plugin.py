"""The plugin stays out of the way of those who don't need it; without it `pip install` could break a test suite."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hybridcloud.testutils import plugin

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
import sys

import pytest

def test_nothing_was_imported():
    loaded = [name for name in sys.modules if name.partition(".")[0] in {"silos", "hybridcloud"}]
    assert sorted(loaded) == ["hybridcloud", "hybridcloud.testutils", "hybridcloud.testutils.plugin"]
    assert "django" not in sys.modules

@pytest.mark.silo("monolith")
@pytest.mark.cells("us")
@pytest.mark.rpc_socket
def test_its_markers_are_declared(): ...
"""


@pytest.mark.acceptance
def test_without_django_it_imports_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    options = ("-p", "hybridcloud.testutils.plugin", "--strict-markers", "--rootdir", ".")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_silo_marker_without_modes_is_refused() -> None:
    marker = pytest.mark.silo().mark
    metafunc = SimpleNamespace(
        definition=SimpleNamespace(get_closest_marker=lambda _: marker), fixturenames=[]
    )
    with pytest.raises(pytest.UsageError, match=r"^No mode in the silo marker"):
        plugin.pytest_generate_tests(metafunc)
