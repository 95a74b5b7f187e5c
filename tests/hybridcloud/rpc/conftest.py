from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from hybridcloud.rpc.breaker import breakers
from hybridcloud.rpc.client import transport
from hybridcloud.testutils.rpc import RpcServer, in_process_transport, socket_transport
from tests.hybridcloud.rpc import orchard as services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@pytest.fixture
def configure() -> Callable[..., AbstractContextManager[Any]]:
    """Change some keys of HYBRIDCLOUD for a block."""

    def change(**keys: Any) -> AbstractContextManager[Any]:
        return override_settings(HYBRIDCLOUD={**django_settings.HYBRIDCLOUD, **keys})

    return change


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Begin each test with known secrets, closed breakers and no calls."""
    base = copy.copy(django_settings.HYBRIDCLOUD)
    base |= {
        "RPC_SECRETS": ["newest-secret", "previous-secret"],
        "RPC_TIMEOUT": 10,
        "RPC_MAX_BYTES": 100_000,
        "CELL_RESOLVER": "tests.hybridcloud.rpc.orchard.Resolver",
    }
    services.ran.reset()
    breakers.reset()
    # Without the transport that the pytest plugin puts in place: it is among what is tested.
    with override_settings(HYBRIDCLOUD=base), transport.override(None):
        yield
    services.ran.release.set()
    breakers.reset()


@pytest.fixture
def ran() -> services.Ran:
    """What handlers did in this test."""
    return services.ran


@pytest.fixture
def in_process() -> Iterator[None]:
    """Let calls between silos run the endpoint in process."""
    with in_process_transport():
        yield


@pytest.fixture
def server() -> Iterator[RpcServer]:
    """Let calls between silos go over a real socket."""
    with socket_transport() as running:
        yield running
