"""What rolls back leaves no message, whichever savepoint it was in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from hybridcloud.outbox import outbox_context
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US, message
from .writing import objects, rolled_back, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


class TestSavepoints:
    def test_a_savepoint_that_rolls_back_takes_its_messages_along(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with rolled_back(transaction.atomic(using=US)):
                message(obj=2).save()
            message(obj=3).save()
        assert objects() == [1, 3]

    def test_a_nested_contexts_rollback_does_too(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with rolled_back(outbox_context(transaction.atomic(using=US))):
                message(obj=2).save()
        assert objects() == [1]

    def test_merging_is_among_those_that_survive(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1, payload="kept").save()
            with rolled_back(transaction.atomic(using=US)):
                message(obj=1, payload="lost").save()
        assert stored() == [(9000, 1, "kept")]

    def test_a_savepoint_inside_one_that_rolls_back_is_lost_with_it(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with rolled_back(transaction.atomic(using=US)), transaction.atomic(using=US):
                message(obj=2).save()
            with transaction.atomic(using=US):
                message(obj=3).save()
        assert objects() == [1, 3]

    def test_messages_from_before_that_a_read_wrote_inside_come_back(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with rolled_back(transaction.atomic(using=US)):
                message(obj=2).save()
                assert objects() == [1, 2]
            assert objects() == [1]
        assert objects() == [1]

    def test_messages_that_a_read_wrote_in_a_released_savepoint_stay(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with transaction.atomic(using=US):
                assert objects() == [1]
            message(obj=2).save()
        assert objects() == [1, 2]

    def test_a_released_savepoints_messages_are_not_lost_with_a_later_one(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            with transaction.atomic(using=US):
                assert objects() == [1]
            with rolled_back(transaction.atomic(using=US)):
                message(obj=2).save()
            message(obj=3).save()
        assert objects() == [1, 3]

    def test_a_savepoint_by_hand_is_followed_as_well(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            sid = connections[US].savepoint()
            message(obj=2).save()
            connections[US].savepoint_rollback(sid)
            message(obj=3).save()
            connections[US].savepoint_commit(sid)
        assert objects() == [1, 3]

    def test_a_block_that_is_set_to_roll_back_writes_nothing(self) -> None:
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
            transaction.set_rollback(True, using=US)
        assert objects() == []

    def test_an_error_in_the_block_writes_nothing(self) -> None:
        with rolled_back(outbox_context(transaction.atomic(using=US))):
            message(obj=1).save()
        assert objects() == []

    def test_a_block_leaves_no_trace_on_the_connection(self) -> None:
        before = list(connections[US].execute_wrappers)
        with outbox_context(transaction.atomic(using=US)):
            message(obj=1).save()
        with rolled_back(outbox_context(transaction.atomic(using=US))):
            message(obj=2).save()
        assert connections[US].execute_wrappers == before
