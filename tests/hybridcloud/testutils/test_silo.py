"""Test decorators and switches put tests into silos, and out again; without it tests would leak into one another."""

from __future__ import annotations

import unittest
from typing import Any

import pytest
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from fixtures.acme import factories
from fixtures.acme.models import Organization, OrganizationMapping, ProjectMapping, User
from hybridcloud.testutils import (
    all_silo_test,
    assume_test_silo_mode,
    assume_test_silo_mode_of,
    cell_silo_test,
    control_silo_test,
    outbox_runner,
    override_cells,
)
from silos import AvailabilityError, Cell, SiloMode, get_current_silo
from silos.cells import all_cells, get_cell
from silos.errors import UnknownCellError
from silos.mode import CurrentSilo
from silos.router import alias_of

MONOLITH = CurrentSilo(SiloMode.MONOLITH, "us")
CONTROL = CurrentSilo(SiloMode.CONTROL)
US = CurrentSilo(SiloMode.CELL, "us")
EU = CurrentSilo(SiloMode.CELL, "eu")

seen: dict[str, list[CurrentSilo]] = {}


def note(test: str) -> None:
    """Remember where a test ran, for the test that looks at all of them."""
    seen.setdefault(test, []).append(get_current_silo())


def test_an_undecorated_test_runs_in_the_monolith_in_the_first_cell() -> None:
    assert get_current_silo() == MONOLITH


@cell_silo_test
def test_a_function_runs_in_the_cell() -> None:
    assert get_current_silo() == US


@cell_silo_test(cell="eu")
def test_a_function_runs_in_the_given_cell() -> None:
    assert get_current_silo() == EU


@control_silo_test
def test_a_function_runs_in_control() -> None:
    assert get_current_silo() == CONTROL


@control_silo_test
@pytest.mark.django_db
def test_limits_hold_in_a_decorated_test() -> None:
    assert User.objects.count() == 0
    with pytest.raises(AvailabilityError, match=r"acme\.Organization"):
        Organization.objects.count()


@all_silo_test(cell="eu")
def test_a_function_runs_in_all_silos(request: pytest.FixtureRequest) -> None:
    expected = {"monolith": MONOLITH, "control": CONTROL, "cell": EU}
    (mode,) = [name for name in expected if request.node.name.endswith(f"[{name}]")]
    assert get_current_silo() == expected[mode]


@all_silo_test
@pytest.mark.parametrize("number", [1, 2])
def test_all_silos_multiply_with_parameters(number: int, request: pytest.FixtureRequest) -> None:
    assert str(number) in request.node.name


@pytest.mark.silo("cell", cell="eu")
def test_the_marker_enters_its_silo() -> None:
    assert get_current_silo() == EU


@control_silo_test
class TestInControl:
    """A pytest class in one silo."""

    def test_its_tests_run_there(self) -> None:
        assert get_current_silo() == CONTROL


@cell_silo_test(cell="eu")
class CellCase(TestCase):
    """A Django test case in one silo."""

    def setUp(self) -> None:
        assert get_current_silo() == EU
        self.organization = factories.create_organization()

    def tearDown(self) -> None:
        assert get_current_silo() == EU

    def test_its_tests_run_there_with_all_databases(self) -> None:
        assert self.databases == {"control", "cell_us", "cell_eu"}
        assert list(Organization.objects.all()) == [self.organization]


class InheritedCase(CellCase):
    """A subclass of a decorated test case."""

    def test_it_runs_in_the_process_silo_without_a_decorator_of_its_own(self) -> None: ...

    def setUp(self) -> None:
        """Do nothing: where this runs depends on the test."""

    def tearDown(self) -> None:
        """Do nothing: where this runs depends on the test."""

    def test_its_tests_run_there_with_all_databases(self) -> None:
        assert get_current_silo() == MONOLITH


@all_silo_test
class EveryCase(TestCase):
    """A Django test case in all silos: each test is run three times."""

    @classmethod
    def setUpTestData(cls) -> None:
        with outbox_runner():
            cls.organization = factories.create_organization()

    def setUp(self) -> None:
        self.entered = get_current_silo()

    def test_it(self) -> None:
        expected = {
            "test_it": MONOLITH,
            "test_it_in_control": CONTROL,
            "test_it_in_cell": US,
        }
        assert get_current_silo() == self.entered == expected[self._testMethodName]
        with assume_test_silo_mode_of(OrganizationMapping):
            assert OrganizationMapping.objects.count() == 1


@cell_silo_test(cell="eu")
class CommittedCase(TransactionTestCase):
    """A transactional test case: the flush of all databases happens outside of the silo."""

    def test_it_can_be_torn_down(self) -> None:
        factories.create_organization()
        assert Organization.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.silo("cell", "control")
def test_transactional_functions_can_be_torn_down() -> None:
    factories.create_organization()


class NamedDatabases(TestCase):
    """A test case that names its databases keeps them."""

    databases = frozenset({"control"})

    def test_they_are_kept(self) -> None:
        assert self.databases == {"control"}


class PlainCase(TestCase):
    """A plain test case."""

    def test_it_gets_all_databases(self) -> None:
        assert self.databases == {"control", "cell_us", "cell_eu"}


class NoDatabases(SimpleTestCase):
    """A test case without databases."""

    def test_it_gets_none(self) -> None:
        assert not self.databases


def test_a_decorated_class_with_twins_is_complete() -> None:
    names = [name for name in dir(EveryCase) if name.startswith("test")]
    assert names == ["test_it", "test_it_in_cell", "test_it_in_control"]


def test_decorating_a_method_of_a_test_case_for_all_silos_is_refused() -> None:
    class Wrong(unittest.TestCase):
        @all_silo_test
        def test_it(self) -> None: ...

    with pytest.raises(TypeError, match=r"^Method .*Wrong\.test_it\(\) of a TestCase"):
        Wrong("test_it").test_it()


def test_decorating_what_is_no_test_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"^5 is not a test"):
        cell_silo_test(wrong)


def test_switches_nest_and_restore() -> None:
    with assume_test_silo_mode(SiloMode.CELL, cell="eu"):
        with assume_test_silo_mode_of(OrganizationMapping, ProjectMapping):
            assert get_current_silo() == CONTROL
        with assume_test_silo_mode_of(Organization):
            assert get_current_silo() == EU
        with assume_test_silo_mode_of(Organization, cell="us"):
            assert get_current_silo() == US
        assert get_current_silo() == EU
    assert get_current_silo() == MONOLITH


def test_models_of_two_silos_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^No single silo has these models: .*acme\.Organization in"
    ):
        assume_test_silo_mode_of(Organization, OrganizationMapping)
    with pytest.raises(ValueError, match=r"^No model was given"):
        assume_test_silo_mode_of()


def test_overridden_cells_are_there_for_the_block_only() -> None:
    with override_cells(
        "us", Cell("de", "http://de.example"), databases={"de": "cell_eu"}
    ) as cells:
        assert all_cells() == cells
        assert get_cell("de").address == "http://de.example"
        assert get_cell("us").address != ""
        assert alias_of(SiloMode.CELL, "de") == "cell_eu"
        with pytest.raises(UnknownCellError):
            get_cell("eu")
    assert [cell.name for cell in all_cells()] == ["us", "eu"]
    with pytest.raises(ValueError, match=r"^No cell was given"), override_cells():
        pass


@pytest.mark.cells("de", "fr")
def test_the_cells_marker_replaces_the_cells() -> None:
    assert [cell.name for cell in all_cells()] == ["de", "fr"]
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH, "de")


@pytest.mark.django_db
def test_a_new_cell_is_served_by_the_first_cells_database() -> None:
    with override_cells("us", "eu", "de"), outbox_runner():
        factories.create_api_token(factories.create_user())
