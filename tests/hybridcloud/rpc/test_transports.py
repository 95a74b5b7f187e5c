"""The transports of the test tools: what they let a test do, and the mistake that they find."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connections, transaction

from hybridcloud import rpc
from hybridcloud.rpc import RpcError
from hybridcloud.rpc.client import transport
from hybridcloud.testutils.rpc import RpcInTransactionError, in_process_transport, socket_transport
from silos.mode import SiloMode, assume_silo
from tests.hybridcloud.rpc.orchard import Ran, orchard, tree

ALIASES = ["control", "cell_us", "cell_eu"]
BOTH = pytest.mark.parametrize(
    "carrying", [in_process_transport, socket_transport], ids=["in process", "socket"]
)


@BOTH
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.django_db(databases=ALIASES)
def test_another_silo_is_not_called_inside_a_transaction(
    carrying: Any, alias: str, ran: Ran
) -> None:
    with carrying(), transaction.atomic(using=alias):
        with pytest.raises(
            RpcInTransactionError, match=rf"^Open transaction on {alias} during.*orchard\.where"
        ) as caught:
            orchard.where()
        with pytest.raises(RpcInTransactionError, match="a batch"), rpc.batch(cell="us") as b:
            b.call(tree.where, cell_name="us")
    assert isinstance(caught.value, RpcError)
    assert (caught.value.service, caught.value.method) == ("orchard", "where")
    assert ran.names == []


@BOTH
@pytest.mark.django_db(databases=ALIASES)
def test_the_transaction_of_the_test_case_is_none_of_the_caller_s(carrying: Any, ran: Ran) -> None:
    for alias in ALIASES:
        assert connections[alias].in_atomic_block
    with carrying():
        assert orchard.where() == "the control silo"
        with transaction.atomic(using="control"):
            pass
        assert tree.where(cell_name="eu") == "cell 'eu'"
    assert len(ran.names) == 2


@pytest.mark.django_db(databases=ALIASES)
def test_a_local_call_may_be_made_inside_a_transaction(in_process: None, ran: Ran) -> None:
    with assume_silo(SiloMode.CONTROL), transaction.atomic(using="control"):
        assert orchard.where() == "the control silo"
    assert ran.names == ["where"]


@pytest.mark.django_db(databases=ALIASES)
def test_in_process_the_method_sees_the_test_case_s_rows(
    in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []

    def look(self: object) -> str:
        found = ContentType.objects.using("control").filter(app_label="made", model="here")
        seen.append((threading.current_thread().name, found.exists()))
        return ""

    monkeypatch.setattr(type(orchard.declaration.local), "where", look)
    ContentType.objects.using("control").create(app_label="made", model="here")
    orchard.where()
    assert seen == [(threading.current_thread().name, True)]


def test_the_transport_of_before_is_back_after_the_block() -> None:
    assert not transport.is_overridden
    with in_process_transport():
        with socket_transport():
            assert transport.is_overridden
        assert transport.round_trips_local_calls
    assert not transport.is_overridden


def test_the_override_holds_on_every_thread(ran: Ran) -> None:
    found: list[bool] = []
    with in_process_transport():
        thread = threading.Thread(target=lambda: found.append(transport.is_overridden))
        thread.start()
        thread.join()
    assert found == [True]


@BOTH
@pytest.mark.parametrize("mode", ["CONTROL", "CELL"])
def test_one_process_is_every_silo_whatever_its_settings_say(
    carrying: Any, mode: str, configure: Any, ran: Ran
) -> None:
    cell = "us" if mode == "CELL" else None
    with configure(SILO_MODE=mode, CELL=cell), carrying():
        assert orchard.where() == "the control silo"
        assert tree.where(cell_name="eu") == "cell 'eu'"


def test_no_thread_and_no_socket_outlives_the_server() -> None:
    before = threading.active_count()
    with socket_transport() as server:
        orchard.where()
        assert threading.active_count() > before
    assert threading.active_count() == before
    assert not server._open


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_over_the_socket_a_method_has_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids: list[int] = []

    def backend(self: object) -> str:
        with connections["control"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
        return ""

    monkeypatch.setattr(type(orchard.declaration.local), "where", backend)
    with socket_transport():
        orchard.where()
    backend(None)
    assert pids[0] != pids[1]
    # A backend ends a moment after its connection.
    for _ in range(200):
        with connections["control"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pids[0]])
            if cursor.fetchone() == (0,):
                return
        threading.Event().wait(0.02)
    raise AssertionError("the server's thread left its connection open")
