"""Rule 2: a message is deleted only after its handler returned."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from django.db import OperationalError, connections, transaction

from hybridcloud import hooks
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellLease

from .engine import US, Kind, Worker, drain_us, failures, gate, ids, listening, parked, put

pytestmark = [pytest.mark.rule(2), pytest.mark.usefixtures("committed")]


def test_a_message_is_there_while_its_handler_runs_and_gone_after() -> None:
    put(obj=7)
    during: list[list[int]] = []
    with listening(Kind.PLAIN, act=lambda **_: during.append(_ids_elsewhere())) as seen:
        drain_us()
    assert during == [[seen.messages[0]["message_id"]]]
    assert ids() == []


def _ids_elsewhere() -> list[int]:
    with Worker(ids) as worker:
        pass
    return list(worker.result)


def test_no_transaction_is_open_while_a_handler_runs() -> None:
    put(obj=7)
    states: list[str] = []

    def state() -> str:
        with connections[US].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'"
            )
            return str(cursor.fetchone()[0])

    def act(**_: Any) -> None:
        assert not connections[US].in_atomic_block
        with Worker(state) as worker:
            pass
        states.append(worker.result)

    with listening(Kind.PLAIN, act=act):
        drain_us()
    assert states == ["0"]


def test_an_atomic_handlers_writes_commit_with_its_acknowledgement_or_not_at_all() -> None:
    put(Kind.ATOMIC, obj=7)
    put(Kind.ATOMIC, obj=8)

    def act(*, object_identifier: int, **_: Any) -> None:
        assert connections[US].in_atomic_block
        with connections[US].cursor() as cursor:
            cursor.execute("INSERT INTO atomic_probe VALUES (%s)", [object_identifier])
        if object_identifier == 8:
            raise ValueError("after its write")

    with connections[US].cursor() as cursor:
        cursor.execute("CREATE TABLE atomic_probe (n int)")
    try:
        with listening(Kind.ATOMIC, act=act):
            drain_us()
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT n FROM atomic_probe")
            assert cursor.fetchall() == [(7,)]
    finally:
        with connections[US].cursor() as cursor:
            cursor.execute("DROP TABLE atomic_probe")
    assert len(ids()) == 1
    assert failures()[0].object_identifier == 8


def test_an_atomic_handler_whose_lease_was_taken_writes_nothing() -> None:
    put(Kind.ATOMIC, obj=7)

    def act(**_: Any) -> None:
        with connections[US].cursor() as cursor:
            cursor.execute("INSERT INTO atomic_probe VALUES (1)")
        with Worker(lambda: CellLease.objects.using(US).update(token=1)):
            pass

    with connections[US].cursor() as cursor:
        cursor.execute("CREATE TABLE atomic_probe (n int)")
    try:
        with listening(Kind.ATOMIC, act=act):
            drain_us()
        with connections[US].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM atomic_probe")
            assert cursor.fetchone() == (0,)
    finally:
        with connections[US].cursor() as cursor:
            cursor.execute("DROP TABLE atomic_probe")
    assert len(ids()) == 1


def test_an_at_most_once_message_is_a_dead_letter_before_its_handler_and_gone_after() -> None:
    message_id = put(Kind.ONCE, obj=7)
    during: list[list[int]] = []
    with listening(Kind.ONCE, act=lambda **_: during.append(parked("dead"))):
        drain_us()
    assert during == [[message_id]]
    assert parked() == ids() == []


def test_an_at_most_once_message_that_fails_stays_a_dead_letter_and_runs_no_second_time() -> None:
    message_id = put(Kind.ONCE, obj=7)
    after = put(Kind.ONCE, obj=8)

    def act(*, object_identifier: int, **_: Any) -> None:
        if object_identifier == 7:
            raise ValueError("broken")

    with listening(Kind.ONCE, act=act) as seen:
        drain_us()
        drain_us()
    assert seen.objects == [7, 8]
    assert parked("dead") == [message_id]
    assert after not in ids()


def test_relaxed_commits_are_for_acknowledgements_alone() -> None:
    """Failures, dead letters and parked rows are durable; only acks and releases are relaxed."""
    relaxed: list[str] = []
    durable: list[str] = []
    original = Engine.run

    def run(
        self: Engine, statements: Any, params: Any, *, relaxed: bool = False, **more: Any
    ) -> Any:
        (relaxed_texts if relaxed else durable).extend(statements)
        return original(self, statements, params, relaxed=relaxed, **more)

    relaxed_texts = relaxed
    put(obj=1)
    put(Kind.LIMITED_OBJECT, obj=2)
    put(Kind.SILENT, obj=3)

    def act(*, category: Kind, **_: Any) -> None:
        if category is Kind.LIMITED_OBJECT:
            raise ValueError("broken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", run)
        with listening(Kind.PLAIN, Kind.LIMITED_OBJECT, act=act):
            drain_us()
            put(obj=4)
            drain_us()
    assert any('DELETE FROM "hybridcloud_celloutbox" WHERE id' in text for text in relaxed)
    assert not any('hybridcloud_cellparked" (' in text for text in relaxed)
    assert not any('hybridcloud_cellfailure" AS' in text for text in relaxed)
    assert any('hybridcloud_cellparked" (' in text for text in durable)
    assert any('hybridcloud_cellfailure" AS' in text for text in durable)


def test_handled_messages_are_acknowledged_in_batches_and_singly_where_the_scope_says_so() -> None:
    acks: list[int] = []

    class Watch(hooks.Hooks):
        def before_ack(self, ids: Any) -> None:
            if ids:
                acks.append(len(ids))

    for n in range(250):
        put(obj=n)
    with hooks.installed(Watch()), listening(Kind.PLAIN):
        drain_us()
    assert sum(acks) == 250
    assert max(acks) == 100
    acks.clear()
    for n in range(3):
        put(Kind.SINGLE, obj=n)
    with hooks.installed(Watch()), listening(Kind.SINGLE):
        drain_us()
    assert acks == [1, 1, 1]


def test_a_drain_inside_a_transaction_is_refused() -> None:
    from hybridcloud.outbox import OutboxTransactionError

    put(obj=7)
    with (
        transaction.atomic(using=US),
        pytest.raises(OutboxTransactionError, match=r"^Transaction open on 'cell_us'"),
    ):
        drain_us()
    assert len(ids()) == 1


def test_a_session_that_was_ended_between_handlers_is_opened_again() -> None:
    put(Kind.ORDERED, obj=7)
    put(Kind.ORDERED, obj=8)
    first = gate("after_handler")
    with listening(Kind.ORDERED) as seen, hooks.installed(first), Worker(drain_us):
        assert first.reached.wait(20)
        with connections[US].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        first.open.set()
    assert seen.objects == [7, 8]
    assert ids() == []


def test_the_engine_makes_one_cursor_for_each_session() -> None:
    """One for each statement costs more than many a statement."""
    put(Kind.SINGLE, obj=7)
    put(Kind.SINGLE, obj=8)
    connection = connections[US]
    with (
        listening(Kind.SINGLE),
        patch.object(connection, "create_cursor", wraps=connection.create_cursor) as made,
    ):
        drain_us()
        before = made.call_count
        drain_us()
        assert made.call_count == before
        connection.close()
        put(Kind.SINGLE, obj=9)
        before = made.call_count
        drain_us()
        assert made.call_count == before + 1
    assert ids() == []


def test_a_session_that_ended_before_the_engine_first_used_it_is_opened_again() -> None:
    connection = connections[US]
    connection.close()
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert Engine(CellOutbox, US).query("any_parked", {}) == []
