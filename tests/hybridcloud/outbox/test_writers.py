"""Rule 6: writers are never blocked by a drainer, and drainers don't deadlock with one another."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from hybridcloud import hooks

from .engine import US, Kind, Worker, drain_us, gate, ids, leases, listening, message, put, write

pytestmark = [pytest.mark.rule(6), pytest.mark.usefixtures("committed")]


def test_writers_proceed_while_a_drainer_holds_their_shard() -> None:
    put(obj=1)
    running = gate("before_handler")
    with listening(Kind.PLAIN) as seen, hooks.installed(running), Worker(drain_us) as drainer:
        assert running.reached.wait(20)
        with connections[US].cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        try:
            new = [put(obj=2) for _ in range(20)]
            write(*(message(obj=n) for n in range(100)))
        finally:
            with connections[US].cursor() as cursor:
                cursor.execute("RESET lock_timeout")
        assert drainer.is_alive()
        running.open.set()
    assert len(seen.calls) == 101
    assert new[-1] not in ids()


def test_a_drainer_holds_no_lock_on_rows_while_a_handler_runs() -> None:
    put(obj=1)
    locks: list[Any] = []

    def others_locks() -> list[Any]:
        with connections[US].cursor() as cursor:
            cursor.execute(
                "SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                " WHERE c.relname LIKE 'hybridcloud_%%' AND l.pid <> pg_backend_pid()"
            )
            return cursor.fetchall()

    def act(**_: Any) -> None:
        with Worker(others_locks) as worker:
            pass
        locks.append(worker.result)

    with listening(Kind.PLAIN, act=act):
        drain_us()
    assert locks == [[]]


def test_many_drainers_over_many_shards_handle_each_message_once_and_do_not_deadlock() -> None:
    write(*(message(shard=n % 50, obj=n) for n in range(1000)))
    with listening(Kind.PLAIN) as seen:
        workers = [Worker(_drain_small) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.finish()
    assert sorted(seen.objects) == list(range(1000))
    assert ids() == []
    assert leases() == []


def _drain_small() -> int:
    from hybridcloud.outbox import CellOutbox
    from hybridcloud.outbox.drain.loop import Drainer
    from silos import SiloMode, assume_silo

    with assume_silo(SiloMode.CELL, cell="us"):
        return Drainer(CellOutbox, US).sweep(most=7)
