"""Runs tests in the silos that they are about."""

from __future__ import annotations

import unittest
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, overload

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.test import TransactionTestCase, override_settings

from silos import Cell, SiloMode, assume_silo, get_current_silo
from silos.cells import all_cells
from silos.limits import limit_name, silo_of
from silos.router import silo_aliases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from django.db.models import Model

    from silos.mode import CurrentSilo

_SILO: Final = "_hybridcloud_silo"


@contextmanager
def assume_test_silo_mode(mode: SiloMode, *, cell: str | None = None) -> Iterator[CurrentSilo]:
    """Enter a silo for a block, or for each call of a decorated function.

    Args:
        mode: the silo.
        cell: its cell; default: the current cell, else the first.
    """
    if mode is not SiloMode.CONTROL:
        cell = cell or get_current_silo().cell or all_cells()[0].name
    with assume_silo(mode, cell=cell) as entered:
        yield entered


def assume_test_silo_mode_of(
    *models: type[Model], cell: str | None = None
) -> AbstractContextManager[Any]:
    """Enter the silo in which the models live, to read their rows.

        with assume_test_silo_mode_of(OrganizationMapping):
            assert OrganizationMapping.objects.filter(organization_id=1).exists()

    Models that live in every silo, or that declare none, change nothing.

    Args:
        models: the models.
        cell: the cell, for models of cells; default: the current one.

    Raises:
        ValueError: no model was given, or they live in different silos.
    """
    if not models:
        raise ValueError("No model was given to assume_test_silo_mode_of(). Name at least one.")
    limits = {model: silo_of(model) for model in models}
    modes = {limit for limit in limits.values() if isinstance(limit, SiloMode)}
    if len(modes) > 1:
        homes = ", ".join(f"{m._meta.label} in {limit_name(limit)}" for m, limit in limits.items())
        raise ValueError(f"No single silo has these models: {homes}. Enter one silo at a time.")
    if not modes:
        return nullcontext()
    mode = modes.pop()
    return assume_test_silo_mode(mode, cell=cell if mode is SiloMode.CELL else None)


@overload
def cell_silo_test[T: Callable[..., Any]](target: T, /) -> T: ...
@overload
def cell_silo_test[T: Callable[..., Any]](
    target: None = None, /, *, cell: str | None = None
) -> Callable[[T], T]: ...
def cell_silo_test(target: Any = None, /, *, cell: str | None = None) -> Any:
    """Run a test function, or all tests of a class, in a cell.

    Args:
        target: the function or class.
        cell: which cell; default: the one in which undecorated tests run.
    """
    return _decorate(target, _Silo(SiloMode.CELL, cell))


@overload
def control_silo_test[T: Callable[..., Any]](target: T, /) -> T: ...
@overload
def control_silo_test[T: Callable[..., Any]](target: None = None, /) -> Callable[[T], T]: ...
def control_silo_test(target: Any = None, /) -> Any:
    """Run a test function, or all tests of a class, in the control silo.

    Args:
        target: the function or class.
    """
    return _decorate(target, _Silo(SiloMode.CONTROL))


@overload
def all_silo_test[T: Callable[..., Any]](target: T, /) -> T: ...
@overload
def all_silo_test[T: Callable[..., Any]](
    target: None = None, /, *, cell: str | None = None
) -> Callable[[T], T]: ...
def all_silo_test(target: Any = None, /, *, cell: str | None = None) -> Any:
    """Run a test function or class in MONOLITH, in CONTROL and in CELL.

    It triples the time, so keep it for end-to-end tests. The methods of a
    ``TestCase`` get twins, named ``test_it_in_control`` and ``test_it_in_cell``.

    Args:
        target: the function or class.
        cell: which cell; default: the one in which undecorated tests run.
    """
    return _decorate(
        target, _Silo(SiloMode.MONOLITH), _Silo(SiloMode.CONTROL), _Silo(SiloMode.CELL, cell)
    )


class _Silo:
    """A silo to run tests in."""

    __slots__ = ("cell", "mode")

    def __init__(self, mode: SiloMode, cell: str | None = None) -> None:
        self.mode = mode
        self.cell = cell

    def enter(self) -> AbstractContextManager[Any]:
        return assume_test_silo_mode(self.mode, cell=self.cell)


def _decorate(target: Any, *silos: _Silo) -> Any:
    if target is None:
        return lambda real: _decorate(real, *silos)
    if isinstance(target, type):
        if issubclass(target, unittest.TestCase):
            return _decorate_test_case(target, silos)
        return _mark(target, silos)
    if callable(target):
        return _mark(target, silos) if len(silos) > 1 else _enter_in_calls(target, silos[0])
    raise TypeError(f"{target!r} is not a test. Decorate test functions and test classes only.")


def _enter_in_calls(function: Callable[..., Any], silo: _Silo) -> Callable[..., Any]:
    @wraps(function)
    def in_silo(*args: Any, **kwargs: Any) -> Any:
        with silo.enter():
            return function(*args, **kwargs)

    return in_silo


def _mark(target: Any, silos: tuple[_Silo, ...]) -> Any:
    """Mark for the pytest plugin, which can run one test several times."""
    import pytest  # noqa: PLC0415 - optional dependency: test cases run without it

    mark = pytest.mark.silo(*(silo.mode.name for silo in silos), cell=silos[-1].cell)
    if isinstance(target, type):
        return mark(target)

    @wraps(target)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], unittest.TestCase):
            raise TypeError(
                f"Method {target.__qualname__}() of a TestCase cannot run several times by itself. "
                f"Decorate the class with @all_silo_test."
            )
        return target(*args, **kwargs)

    return mark(marked)


def _decorate_test_case(case: type[Any], silos: tuple[_Silo, ...]) -> type[Any]:
    """Attach its silo to each test method, and enter it for the test's run.

    The silo is entered around setUp, test and tearDown, but not around the fixture
    setup and teardown of Django's test cases, which touch the databases of all silos.
    """
    for name in [name for name in dir(case) if name.startswith("test")]:
        method = getattr(case, name)
        # A method that has a silo keeps it: a decorated base class chose it.
        if callable(method) and not hasattr(method, _SILO):
            for silo in silos:
                suffix = "" if silo is silos[0] else f"_in_{silo.mode.name.lower()}"
                setattr(case, name + suffix, _carry(method, silo, name + suffix))
    run = case.run

    def run_in_silo(self: unittest.TestCase, result: Any = None) -> Any:
        silo = getattr(getattr(self, self._testMethodName), _SILO, None)
        with silo.enter() if silo else nullcontext():
            return run(self, result)

    case.run = run_in_silo
    give_databases(case)
    return case


def _carry(method: Callable[..., Any], silo: _Silo, name: str) -> Callable[..., Any]:
    @wraps(method)
    def test(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    test.__name__ = name
    setattr(test, _SILO, silo)
    return test


def give_databases(case: type[Any]) -> None:
    """Let a Django test case use the databases of all silos.

    A test case that names its own keeps them.
    """
    if not issubclass(case, TransactionTestCase):
        return
    declared = next(base for base in case.__mro__ if "databases" in base.__dict__)
    if declared.__module__.startswith("django."):
        case.databases = set(silo_databases())


def silo_databases() -> frozenset[str]:
    """Return the aliases that a test gets.

    They are those of all silos, and ``default`` if it has a database.
    """
    default = settings.DATABASES.get(DEFAULT_DB_ALIAS) or {}
    engine = default.get("ENGINE", "django.db.backends.dummy")
    real = () if engine == "django.db.backends.dummy" else (DEFAULT_DB_ALIAS,)
    return frozenset((*silo_aliases(), *real))


@contextmanager
def override_cells(
    *cells: Cell | str, databases: Mapping[str, str] | None = None
) -> Iterator[tuple[Cell, ...]]:
    """Replace the cells for a block or a decorated function.

        with override_cells("us", "eu", "de"):
            ...

    Args:
        cells: the cells, or their names; a name that is in the settings keeps its address.
        databases: database aliases by cell. A cell that is neither here nor in the
            settings shares the database of the first cell in the settings.

    Raises:
        ValueError: no cell was given.
    """
    if not cells:
        raise ValueError("No cell was given to override_cells(). Give it at least one.")
    current = getattr(settings, "HYBRIDCLOUD", {})
    addresses = {entry["name"]: entry.get("address", "") for entry in current.get("CELLS", ())}
    wanted = tuple(
        each if isinstance(each, Cell) else Cell(each, addresses.get(each, "")) for each in cells
    )
    aliases = current.get("DATABASES", {}).get("cells", {})
    shared = next(iter(aliases.values()), DEFAULT_DB_ALIAS)
    given = {**aliases, **(databases or {})}
    changed = {
        **current,
        "CELLS": [{"name": each.name, "address": each.address} for each in wanted],
        "DATABASES": {
            **current.get("DATABASES", {}),
            "cells": {each.name: given.get(each.name, shared) for each in wanted},
        },
    }
    if current.get("CELL") not in {None, *(each.name for each in wanted)}:
        changed["CELL"] = wanted[0].name
    with override_settings(HYBRIDCLOUD=changed):
        yield wanted


__all__ = [
    "all_silo_test",
    "assume_test_silo_mode",
    "assume_test_silo_mode_of",
    "cell_silo_test",
    "control_silo_test",
    "give_databases",
    "override_cells",
    "silo_databases",
]
