"""A transaction that a handler leaves open, or ends, is its message's failure.

The kinds: an atomic block that was entered, BEGIN, autocommit that was switched off, on the outbox's
own database and on another; in an atomic scope a block left open, COMMIT and ROLLBACK.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.store.state import CellParked
from silos.mode import SiloMode, assume_silo

from .engine import US, Kind, drain_us, failures, ids, leases, listening, message, parked, put

pytestmark = pytest.mark.usefixtures("committed")


def _enter_atomic(alias: str) -> None:
    transaction.atomic(using=alias).__enter__()


def _begin(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("BEGIN")


def _no_autocommit(alias: str) -> None:
    transaction.set_autocommit(False, using=alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")


LEAVES = {"an atomic block": _enter_atomic, "BEGIN": _begin, "no autocommit": _no_autocommit}


@pytest.mark.parametrize("end", ["returns", "raises"])
@pytest.mark.parametrize("alias", [US, "cell_eu"])
@pytest.mark.parametrize("name", LEAVES)
def test_a_transaction_that_a_handler_leaves_open_is_its_messages_failure(
    name: str, alias: str, end: str
) -> None:
    for obj in (1, 666, 3):
        put(Kind.BY_OBJECT, shard=1, obj=obj)

    def act(*, object_identifier: int, **_: Any) -> None:
        assert not connections[alias].in_atomic_block
        if object_identifier == 666:
            CellOutbox.objects.using(US).filter(object_identifier=3).update(payload="lost")
            with assume_silo(SiloMode.CELL, cell=alias.removeprefix("cell_")):
                LEAVES[name](alias)
            if alias == US:
                CellOutbox.objects.using(US).filter(object_identifier=1).update(payload="open")
            if end == "raises":
                raise LookupError("its own words")

    with listening(Kind.BY_OBJECT, act=act) as seen:
        drain_us()
    (failure,) = failures()
    assert failure.object_identifier == 666
    wanted = "its own words" if end == "raises" else f"left a transaction open on '{alias}'"
    assert wanted in failure.last_error
    assert seen.objects == [1, 666, 3]
    assert (ids(), len(parked("held")), leases()) == ([], 1, [])
    assert not connections[alias].in_atomic_block


def test_an_atomic_handler_that_leaves_a_block_open_fails_alone() -> None:
    for obj in (1, 666, 3):
        put(Kind.ATOMIC, shard=obj, obj=obj)

    def act(*, object_identifier: int, **_: Any) -> None:
        message(Kind.OTHER, obj=object_identifier).save(using=US)
        if object_identifier == 666:
            _enter_atomic(US)

    with listening(Kind.ATOMIC, act=act) as seen:
        drain_us()
    assert [each.object_identifier for each in failures()] == [666]
    assert "left an atomic block open" in failures()[0].last_error
    assert seen.objects == [1, 3, 666]
    # Written by the two that succeeded; nobody receives them.
    written = [
        each
        for table in (CellOutbox, CellParked)
        for each in table.objects.using(US).filter(category=Kind.OTHER)
    ]
    assert sorted(each.object_identifier for each in written) == [1, 3]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_an_atomic_handler_that_ends_its_transaction_is_told_so(statement: str) -> None:
    put(Kind.ATOMIC, shard=1, obj=666)
    put(Kind.ATOMIC, shard=2, obj=2)

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 666:
            with connections[US].cursor() as cursor:
                cursor.execute(statement)

    with listening(Kind.ATOMIC, act=act) as seen:
        drain_us()
    (failure,) = failures()
    assert "ended the transaction around it" in failure.last_error
    assert seen.objects == [666, 2]
    assert len(ids()) == 1


def test_a_handler_that_closes_its_connections_costs_nothing() -> None:
    for obj in (1, 2, 3):
        put(shard=1, obj=obj)
    with listening(Kind.PLAIN, act=lambda **_: connections.close_all()) as seen:
        drain_us()
    assert (seen.objects, ids(), failures()) == ([1, 2, 3], [], [])
