"""The pytest plugin: fixtures and markers for silos and outboxes.

It works beside pytest-django and replaces none of its fixtures. Tests that use
a database get the databases of all silos, run in MONOLITH with a current cell,
and call other silos in process, through the real serialisation and signature.

Django and hybridcloud are imported only inside hooks and fixtures, because pytest
loads plugins before it measures coverage and before Django is set up.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hybridcloud.testutils.outbox import OutboxProbe, OutboxRunner

_SILO = "_silo_of_test"
_DB_FIXTURES = frozenset({"db", "transactional_db", "live_server", "django_db_reset_sequences"})

_MARKERS = (
    "silo(*modes, cell=None): run the test once in each of these silo modes.",
    "cells(*names): let the installation have these cells during the test.",
    "rpc_socket: let calls between silos go over a real local socket.",
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, for ``--strict-markers``."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test that uses a database the databases of all silos.

    A test that names its own keeps them.
    """
    if not _is_installed():
        return
    # Django's app registry
    from django.test import TransactionTestCase  # noqa: PLC0415

    from hybridcloud.testutils.silo import give_databases, silo_databases  # noqa: PLC0415

    case = getattr(item, "cls", None)
    if case is not None and issubclass(case, TransactionTestCase):
        give_databases(case)
        return
    marker = item.get_closest_marker("django_db")
    if marker is None and not _DB_FIXTURES & {*getattr(item, "fixturenames", ())}:
        return
    said: Mapping[str, Any] = marker.kwargs if marker else {}
    if said.get("databases") is None:
        arguments = {**said, "databases": sorted(silo_databases())}
        given = marker.args if marker else ()
        # In front, so that it is the closest: pytest-django reads only that one.
        item.add_marker(pytest.mark.django_db(*given, **arguments), append=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the silo marker once in each of its modes."""
    marker = metafunc.definition.get_closest_marker("silo")
    if marker is None:
        return
    if not marker.args:
        raise pytest.UsageError("No mode in the silo marker. Give it MONOLITH, CONTROL or CELL.")
    if _SILO not in metafunc.fixturenames:
        metafunc.fixturenames.append(_SILO)
    modes = [str(getattr(mode, "name", mode)).upper() for mode in marker.args]
    metafunc.parametrize(_SILO, modes, indirect=True, ids=[mode.lower() for mode in modes])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """Run a test and its fixtures in MONOLITH, with a current cell.

    This includes the fixtures of its class. Silos call each other in process.
    """
    with ExitStack() as stack:
        if _is_installed():
            from hybridcloud.testutils.rpc import in_process_transport  # noqa: PLC0415  (Django settings)

            stack.enter_context(in_process_transport())
            _enter_default_cell(stack)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Enter the silo of the silo marker around the test itself.

    Fixtures are left out: the teardown of a transactional test touches all silos.
    """
    mode = getattr(getattr(item, "callspec", None), "params", {}).get(_SILO)
    with ExitStack() as stack:
        marker = item.get_closest_marker("silo")
        if mode not in (None, "MONOLITH") and marker is not None:
            from hybridcloud.testutils.silo import (  # noqa: PLC0415  (Django app registry)
                assume_test_silo_mode,
            )
            from silos import SiloMode  # noqa: PLC0415  (Django app registry)

            cell = marker.kwargs.get("cell") if mode == "CELL" else None
            stack.enter_context(assume_test_silo_mode(SiloMode[mode], cell=cell))
        return (yield)


@pytest.fixture(name=_SILO)
def _silo_of_test(request: pytest.FixtureRequest) -> Any:
    """Carry the mode that the silo marker gives to this run of the test."""
    return request.param


@pytest.fixture(autouse=True)
def _hybridcloud_cells(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the installation have the cells of the cells marker."""
    marker = request.node.get_closest_marker("cells")
    with ExitStack() as stack:
        if marker is not None and _is_installed():
            from hybridcloud.testutils.silo import override_cells  # noqa: PLC0415  (Django settings)

            stack.enter_context(override_cells(*marker.args, **marker.kwargs))
            _enter_default_cell(stack)
        yield


@pytest.fixture(autouse=True)
def _hybridcloud_rpc(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let silos call each other over a local socket, if the test is marked so."""
    with ExitStack() as stack:
        if request.node.get_closest_marker("rpc_socket") is not None and _is_installed():
            from hybridcloud.testutils.rpc import socket_transport  # noqa: PLC0415  (Django settings)

            stack.enter_context(socket_transport())
        yield


@pytest.fixture
def outbox(db: None) -> OutboxProbe:  # noqa: ARG001
    """Inspect and drain the outboxes of all silos."""
    from hybridcloud.testutils.outbox import OutboxProbe  # noqa: PLC0415  (Django app registry)

    return OutboxProbe()


@pytest.fixture
def outbox_runner(db: None) -> Callable[..., OutboxRunner]:  # noqa: ARG001
    """Return `hybridcloud.testutils.outbox_runner`."""
    from hybridcloud.testutils.outbox import outbox_runner  # noqa: PLC0415  (Django app registry)

    return outbox_runner


def _enter_default_cell(stack: ExitStack) -> None:
    """Enter the first cell if the process is in no cell.

    A MONOLITH with several databases has no current cell of its own.
    """
    from silos import SiloMode, assume_silo  # noqa: PLC0415  (Django settings)
    from silos.cells import all_cells  # noqa: PLC0415  (Django settings)
    from silos.mode import get_process_silo  # noqa: PLC0415  (Django settings)

    process = get_process_silo()
    if process.mode is SiloMode.MONOLITH and process.cell is None:
        stack.enter_context(assume_silo(SiloMode.MONOLITH, cell=all_cells()[0].name))


def _is_installed() -> bool:
    """Return whether Django is set up in this run, with hybridcloud installed."""
    if "django" not in sys.modules:
        return False
    from django.apps import apps  # noqa: PLC0415  (coverage)
    from django.conf import settings  # noqa: PLC0415  (coverage)

    return settings.configured and apps.ready and apps.is_installed("hybridcloud")
