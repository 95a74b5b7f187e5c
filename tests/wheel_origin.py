"""The packages are imported from the installed wheel, and no checkout is on the path.

Named by `make test-wheel` alone: in a checkout the packages come from the checkout.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

import hybridcloud

PACKAGES = ("silos", "hybridcloud", "receivers")
INSTALLED = Path(sys.prefix).resolve()


def origin(name: str) -> Path:
    return Path(import_module(name).__file__ or "").resolve()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_the_wheels(package: str) -> None:
    assert origin(package).is_relative_to(INSTALLED)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_path_offers_the_package_once(package: str) -> None:
    offers = [Path(entry) / package for entry in sys.path if (Path(entry) / package).exists()]
    assert [offer.resolve() for offer in offers] == [origin(package).parent]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_of_the_package_is_the_wheels_and_can_be_imported(package: str) -> None:
    modules = pkgutil.walk_packages([str(origin(package).parent)], f"{package}.")
    names = [module.name for module in modules]
    assert names
    assert [name for name in names if not origin(name).is_relative_to(INSTALLED)] == []


def test_the_version_is_the_wheels() -> None:
    wheel = distribution("hybridcloud")
    assert Path(str(wheel.locate_file("hybridcloud"))).resolve() == origin("hybridcloud").parent
    assert hybridcloud.__version__ == wheel.version


def test_tests_and_fixtures_are_the_copies() -> None:
    here = Path(__file__).resolve().parent.parent
    assert not (here / "hybridcloud").exists()
    assert origin("fixtures").is_relative_to(here)
