"""The cell directory and the resolver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from silos import Cell, find_cells_for_orgs, find_cells_for_user
from silos.cells import all_cells, control_address, find_cell_for_org, get_cell
from silos.errors import (
    CellMappingNotFoundError,
    DuplicateCellError,
    SiloConfigurationError,
    UnknownCellError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Configure = Callable[..., None]

CELLS = [{"name": "us", "address": "http://us"}, {"name": "eu", "address": "http://eu"}]


class OddEven:
    """Odd organizations live in us, even ones in eu; above 100 nobody knows, 99 is a mistake."""

    def cells_of_organizations(self, ids: Iterable[int]) -> Mapping[int, str]:
        found = {each: "us" if each % 2 else "eu" for each in ids if each <= 100}
        return {each: "mars" if each == 99 else cell for each, cell in found.items()}

    def cells_of_user(self, user_id: int) -> set[str]:
        return {"us", "eu"} if user_id else set()


class Half:
    """Forgets a method."""

    def cells_of_user(self, user_id: int) -> set[str]:
        return set()


RESOLVER = f"{OddEven.__module__}.OddEven"


@pytest.fixture
def resolved(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(CELLS=CELLS, CELL_RESOLVER=RESOLVER)


def test_cells_are_listed_in_the_order_of_the_settings(configure: Configure) -> None:
    configure(CELLS=CELLS, CONTROL_ADDRESS="http://control")
    assert all_cells() == (Cell("us", "http://us"), Cell("eu", "http://eu"))
    assert get_cell("eu") == Cell("eu", "http://eu")
    assert control_address() == "http://control"


def test_without_cells_there_is_one_named_monolith(configure: Configure) -> None:
    configure()
    assert all_cells() == (Cell("monolith", ""),)


def test_changed_settings_are_seen_at_once(configure: Configure) -> None:
    configure(CELLS=CELLS)
    assert len(all_cells()) == 2
    configure(CELLS=CELLS[:1])
    assert len(all_cells()) == 1


def test_a_cell_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Cell("us").name = "eu"  # type: ignore[misc]


def test_an_unknown_cell_is_a_lookup_error_that_names_near_matches(configure: Configure) -> None:
    configure(CELLS=CELLS)
    with pytest.raises(UnknownCellError, match=r"Unknown cell 'uk'.*Known: 'eu', 'us'") as caught:
        get_cell("uk")
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ({"CELLS": [*CELLS, {"name": "us"}]}, DuplicateCellError, "Duplicate cell name 'us'"),
        (
            {"CELLS": [*CELLS, {"name": "us2", "address": "http://us"}]},
            DuplicateCellError,
            "Duplicate cell address 'http://us'.*'us' and 'us2'",
        ),
        ({"CELLS": [{"nam": "us"}]}, SiloConfigurationError, "without a name"),
        ({"CELLS": ["us"]}, SiloConfigurationError, "'us' without a name"),
        ({"CELLS": [{"name": ""}]}, SiloConfigurationError, "empty name"),
        (
            {"CELLS": [{"name": "us", "adress": ""}]},
            SiloConfigurationError,
            "unknown key 'adress'.*Did you mean 'address'",
        ),
        ({"CELLS": CELLS, "CELL": "uss"}, SiloConfigurationError, "'uss'.*Did you mean 'us'"),
        (
            {"CELLS": CELLS, "DATABASES": {"cells": {"use": "x"}}},
            SiloConfigurationError,
            "unknown cell 'use'",
        ),
        (
            {"CELLS": CELLS, "DATABASES": {"cells": ["us"]}},
            SiloConfigurationError,
            "Map each cell's name",
        ),
        (
            {"CELLS": CELLS, "DATABASES": {"controll": "x"}},
            SiloConfigurationError,
            "unknown key 'controll'.*'control'",
        ),
    ],
)
def test_a_mistake_in_the_directory_is_named(
    configure: Configure, keys: dict[str, Any], error: type[Exception], text: str
) -> None:
    configure(**keys)
    with pytest.raises(error, match=text):
        all_cells()


def test_organizations_are_resolved_to_the_set_of_their_cells(resolved: None) -> None:
    assert find_cells_for_orgs([1, 3]) == {"us"}
    assert find_cells_for_orgs(iter([1, 2])) == {"us", "eu"}
    assert find_cells_for_orgs([]) == set()
    assert find_cell_for_org(2) == "eu"


def test_an_unknown_organization_is_named(resolved: None) -> None:
    with pytest.raises(
        CellMappingNotFoundError, match=r"organization 101, 103, according to .*OddEven"
    ):
        find_cells_for_orgs([1, 101, 103])
    with pytest.raises(LookupError):
        find_cell_for_org(101)


def test_a_resolver_that_names_an_unknown_cell_is_caught(resolved: None) -> None:
    with pytest.raises(UnknownCellError, match="Unknown cell 'mars'"):
        find_cell_for_org(99)


def test_a_user_is_resolved_to_cells_or_to_none(resolved: None) -> None:
    assert find_cells_for_user(1) == {"us", "eu"}
    assert find_cells_for_user(0) == set()


def test_without_a_resolver_one_cell_answers_itself(configure: Configure) -> None:
    configure(CELLS=CELLS[:1])
    assert find_cells_for_orgs([1, 2]) == {"us"}
    assert find_cells_for_user(7) == {"us"}
    assert find_cell_for_org(5) == "us"


def test_without_a_resolver_several_cells_name_the_setting(configure: Configure) -> None:
    configure(CELLS=CELLS)
    with pytest.raises(SiloConfigurationError, match=r'"CELL_RESOLVER"\] is not set.*2 cells'):
        find_cells_for_orgs([1])
    with pytest.raises(SiloConfigurationError, match="CELL_RESOLVER"):
        find_cells_for_user(1)


def test_a_resolver_that_cannot_be_imported_is_named(configure: Configure) -> None:
    configure(CELLS=CELLS, CELL_RESOLVER="nowhere.Resolver")
    with pytest.raises(SiloConfigurationError, match=r"'nowhere.Resolver' cannot be imported"):
        find_cells_for_user(1)


def test_a_resolver_without_a_method_is_named(configure: Configure) -> None:
    configure(CELLS=CELLS, CELL_RESOLVER=f"{Half.__module__}.Half")
    with pytest.raises(SiloConfigurationError, match="has no method cells_of_organizations"):
        find_cells_for_user(1)
