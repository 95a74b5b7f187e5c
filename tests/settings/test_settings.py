"""The settings modules of the example company: a silo's process must not be able to see another's data."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_SHOW = """
import importlib, json, sys
module = importlib.import_module("fixtures.settings." + sys.argv[1])
print(json.dumps({"databases": module.DATABASES, "hybridcloud": module.HYBRIDCLOUD}))
"""


def _load(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"]} | {
        name: value for name, value in os.environ.items() if name.startswith("DATABASE_URL_")
    }
    return subprocess.run(
        [sys.executable, "-c", _SHOW, name],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "environment", "mode", "aliases"),
    [
        ("monolith", {}, "MONOLITH", {"control", "cell_us", "cell_eu"}),
        ("test", {}, "MONOLITH", {"control", "cell_us", "cell_eu"}),
        ("control", {}, "CONTROL", {"control"}),
        ("cell", {"HYBRIDCLOUD_CELL": "us"}, "CELL", {"cell_us"}),
        ("cell", {"HYBRIDCLOUD_CELL": "eu"}, "CELL", {"cell_eu"}),
    ],
)
def test_a_process_has_the_databases_of_its_silo_alone(
    name: str, environment: dict[str, str], mode: str, aliases: set[str]
) -> None:
    run = _load(name, **environment)
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["hybridcloud"]["SILO_MODE"] == mode
    assert {alias for alias, database in shown["databases"].items() if database} == aliases


@pytest.mark.parametrize("environment", [{}, {"HYBRIDCLOUD_CELL": "mars"}])
def test_a_cell_must_be_named_and_known(environment: dict[str, str]) -> None:
    run = _load("cell", **environment)
    assert run.returncode != 0
    assert "Set it to one of us, eu." in run.stderr


def test_a_cell_knows_its_name() -> None:
    shown = json.loads(_load("cell", HYBRIDCLOUD_CELL="eu").stdout)
    assert shown["hybridcloud"]["CELL"] == "eu"


def test_addresses_come_from_the_environment() -> None:
    run = _load("control", HYBRIDCLOUD_ADDRESS_EU="http://127.0.0.1:9999")
    cells = json.loads(run.stdout)["hybridcloud"]["CELLS"]
    assert {"name": "eu", "address": "http://127.0.0.1:9999"} in cells
