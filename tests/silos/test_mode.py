"""The current silo: process default, entering and leaving, threads and async."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from silos import SiloMode, assume_silo, get_current_silo
from silos.errors import SiloConfigurationError, UnknownCellError
from silos.mode import CurrentSilo, current_cell_name, get_process_silo

if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[..., None]

CELLS = [{"name": "us"}, {"name": "eu"}]


def test_without_settings_the_process_is_a_monolith_with_one_cell(configure: Configure) -> None:
    configure()
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH, "monolith")


def test_a_monolith_with_one_database_is_in_the_first_cell(configure: Configure) -> None:
    configure(CELLS=CELLS)
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH, "us")


def test_a_monolith_with_several_databases_is_in_no_cell(several: Configure) -> None:
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH, None)
    assert current_cell_name() is None


def test_a_monolith_may_name_the_cell_that_it_stands_in(several: Configure) -> None:
    several(CELL="eu")
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH, "eu")


@pytest.mark.parametrize("value", ["CELL", "cell", SiloMode.CELL])
def test_a_cell_process_is_its_cell(configure: Configure, value: str) -> None:
    configure(SILO_MODE=value, CELLS=CELLS, CELL="eu")
    assert get_current_silo() == CurrentSilo(SiloMode.CELL, "eu")


def test_a_control_process_has_no_cell(configure: Configure) -> None:
    configure(SILO_MODE="CONTROL", CELLS=CELLS, CELL="eu")
    assert get_current_silo() == CurrentSilo(SiloMode.CONTROL, None)


def test_a_cell_process_must_say_which_cell_it_is(configure: Configure) -> None:
    configure(SILO_MODE="CELL", CELLS=CELLS)
    with pytest.raises(SiloConfigurationError, match=r'"CELL"\] is missing.*\'eu\', \'us\''):
        get_current_silo()


def test_a_misspelt_mode_names_the_one_that_was_meant(configure: Configure) -> None:
    configure(SILO_MODE="CONTROLL")
    with pytest.raises(SiloConfigurationError, match="Did you mean 'CONTROL'"):
        get_current_silo()


def test_assume_silo_nests_and_restores(several: Configure) -> None:
    with assume_silo(SiloMode.CONTROL) as outer:
        assert outer == get_current_silo() == CurrentSilo(SiloMode.CONTROL)
        with assume_silo(SiloMode.CELL, cell="eu"):
            assert get_current_silo() == CurrentSilo(SiloMode.CELL, "eu")
            with assume_silo(SiloMode.CELL, cell="us"):
                assert current_cell_name() == "us"
            assert current_cell_name() == "eu"
        assert get_current_silo() == CurrentSilo(SiloMode.CONTROL)
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH)


def test_assume_silo_restores_after_an_error(several: Configure) -> None:
    with pytest.raises(ZeroDivisionError), assume_silo(SiloMode.CONTROL):
        1 / 0  # noqa: B018
    assert get_current_silo() == CurrentSilo(SiloMode.MONOLITH)


def test_one_assume_silo_object_can_be_entered_inside_itself(several: Configure) -> None:
    control = assume_silo(SiloMode.CONTROL)
    with control, assume_silo(SiloMode.CELL, cell="us"):
        with control:
            assert get_current_silo().mode is SiloMode.CONTROL
        assert current_cell_name() == "us"
    assert get_current_silo().mode is SiloMode.MONOLITH


def test_a_decorated_function_runs_in_the_silo_and_keeps_its_name(several: Configure) -> None:
    @assume_silo(SiloMode.CELL, cell="eu")
    def where() -> CurrentSilo:
        return get_current_silo()

    assert where() == CurrentSilo(SiloMode.CELL, "eu")
    assert where.__name__ == "where"
    assert get_current_silo().mode is SiloMode.MONOLITH


def test_a_decorated_coroutine_runs_in_the_silo_until_it_ends(several: Configure) -> None:
    @assume_silo(SiloMode.CELL, cell="eu")
    async def where() -> CurrentSilo:
        await asyncio.sleep(0)
        return get_current_silo()

    assert asyncio.run(where()) == CurrentSilo(SiloMode.CELL, "eu")


def test_async_tasks_do_not_see_the_silo_of_one_another(several: Configure) -> None:
    async def visit(cell: str, entered: asyncio.Event, other: asyncio.Event) -> str | None:
        with assume_silo(SiloMode.CELL, cell=cell):
            entered.set()
            await asyncio.wait_for(other.wait(), 5)
            return current_cell_name()

    async def both() -> list[str | None]:
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(visit("us", first, second), visit("eu", second, first))

    assert asyncio.run(both()) == ["us", "eu"]


def test_threads_do_not_see_the_silo_of_one_another(several: Configure) -> None:
    barrier = threading.Barrier(2, timeout=5)

    @assume_silo(SiloMode.CELL, cell="us")
    def in_us() -> str | None:
        barrier.wait()
        return current_cell_name()

    def in_process_silo() -> CurrentSilo:
        barrier.wait()
        return get_current_silo()

    with assume_silo(SiloMode.CONTROL), ThreadPoolExecutor(2) as pool:
        us, plain = pool.submit(in_us), pool.submit(in_process_silo)
        assert us.result(5) == "us"
        assert plain.result(5) == CurrentSilo(SiloMode.MONOLITH)


def test_entering_an_unknown_cell_names_near_matches(several: Configure) -> None:
    with (
        pytest.raises(UnknownCellError, match=r"Unknown cell 'uss'.*Did you mean 'us'"),
        assume_silo(SiloMode.CELL, cell="uss"),
    ):
        pass
    assert get_current_silo().mode is SiloMode.MONOLITH


def test_entering_cells_without_a_name_keeps_the_current_cell(several: Configure) -> None:
    with assume_silo(SiloMode.MONOLITH, cell="eu"), assume_silo(SiloMode.CELL) as entered:
        assert entered == CurrentSilo(SiloMode.CELL, "eu")


def test_entering_a_monolith_without_a_name_forgets_the_cell(several: Configure) -> None:
    with assume_silo(SiloMode.CELL, cell="eu"), assume_silo(SiloMode.MONOLITH) as entered:
        assert entered == CurrentSilo(SiloMode.MONOLITH, None)


def test_entering_cells_without_a_name_takes_the_only_one(configure: Configure) -> None:
    configure(CELLS=CELLS[:1], DATABASES={"control": "control", "cells": {"us": "cell_us"}})
    assert get_current_silo().cell is None
    with assume_silo(SiloMode.CELL) as entered:
        assert entered == CurrentSilo(SiloMode.CELL, "us")


def test_entering_cells_without_a_name_from_none_is_an_error(several: Configure) -> None:
    with (
        pytest.raises(UnknownCellError, match="No cell was given to assume_silo"),
        assume_silo(SiloMode.CONTROL),
        assume_silo(SiloMode.CELL),
    ):
        pass


def test_control_takes_no_cell() -> None:
    with pytest.raises(ValueError, match="control silo has no cell, but 'us'"):
        assume_silo(SiloMode.CONTROL, cell="us")


def test_the_process_silo_is_known_inside_another(several: Configure) -> None:
    with assume_silo(SiloMode.CONTROL):
        assert get_process_silo() == CurrentSilo(SiloMode.MONOLITH)
