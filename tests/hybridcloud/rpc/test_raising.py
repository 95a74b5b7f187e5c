"""Whatever a method raises is answered, alone and in a batch, and ends no process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridcloud import rpc
from tests.hybridcloud.outbox.test_raised import POISONS
from tests.hybridcloud.rpc import orchard as services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=POISONS)
def poison(request: pytest.FixtureRequest) -> Iterator[Callable[[], BaseException]]:
    services.poison[:] = [POISONS[request.param]]
    yield services.poison[0]
    services.poison.clear()


@pytest.mark.usefixtures("server", "poison")
def test_a_call_of_rpc_is_answered() -> None:
    with pytest.raises(rpc.RpcRemoteError):
        services.orchard.fail(value="x")
    assert services.orchard.count(number=1) == 1


@pytest.mark.usefixtures("server", "poison")
def test_calls_of_a_batch_that_ran_are_returned() -> None:
    with rpc.batch() as b:
        first = b.call(services.orchard.count, number=1)
        failing = b.call(services.orchard.fail, value="x")
        last = b.call(services.orchard.count, number=2)
    assert (first.result(), last.result()) == (1, 2)
    with pytest.raises(rpc.RpcRemoteError):
        failing.result()
