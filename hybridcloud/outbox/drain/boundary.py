"""Notices a transaction that a handler left open, or closed.

What it leaves open would take in the next handlers and their acknowledgements; what it closes
commits half of an atomic handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

type _State = tuple[int, int, bool, bool]

_IDLE = TransactionStatus.IDLE
_OUTSIDE: _State = (0, 0, True, False)
_created = 0


class Boundary:
    """The transactions of this thread's connections, around each handler.

    Args:
        connection: the outbox table's; around atomic handlers its transaction is open.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._own = connection
        self._before = _OUTSIDE
        self._seen = _created
        # What the caller of a drain has open elsewhere is its own.
        self._others = {each: _state_of(each) for each in _all_but(connection)}

    def enter(self) -> None:
        """Note what is open before a handler."""
        self._before = _state_of(self._own)

    def leave(self) -> str:
        """Undo what a handler left open; return what is wrong, or nothing."""
        if self._seen != _created:
            # Made since: nothing was open in them before the handler.
            self._seen = _created
            self._others |= {
                each: _OUTSIDE for each in _all_but(self._own) if each not in self._others
            }
        left = _restore(self._own, self._before)
        for other, before in self._others.items():
            left = _restore(other, before) or left
        return left


def _state_of(connection: BaseDatabaseWrapper) -> _State:
    """Return open blocks, savepoints, autocommit, and what the driver says."""
    driver = connection.connection
    # A handler may send BEGIN and COMMIT itself, of which Django knows nothing.
    is_open = driver is not None and driver.pgconn.transaction_status != _IDLE
    blocks, savepoints = connection.atomic_blocks, connection.savepoint_ids
    return len(blocks), len(savepoints), connection.autocommit or driver is None, is_open


def _restore(connection: BaseDatabaseWrapper, before: _State) -> str:
    """Bring a connection back to its state before a handler; say what was."""
    now = _state_of(connection)
    blocks, savepoints, autocommit, is_open = before
    # Inside a block the driver begins at the first statement, and COMMIT is seen by `Settlement`.
    if now == before or (not autocommit and now[:2] == before[:2]):
        return ""
    if blocks or not autocommit or is_open:
        # An outer block, of an atomic scope or a test case, goes on: with what it began with.
        del connection.atomic_blocks[blocks:], connection.savepoint_ids[savepoints:]
        connection.needs_rollback = True
        return f"The handler left an atomic block open on {connection.alias!r}"
    # As of no block, so that close() gives the session up, and with it the transaction.
    connection.in_atomic_block = False
    connection.atomic_blocks, connection.savepoint_ids = [], []
    connection.run_on_commit = []
    connection.close()
    return f"The handler left a transaction open on {connection.alias!r}, which was rolled back"


def _all_but(own: BaseDatabaseWrapper) -> list[BaseDatabaseWrapper]:
    found = connections.all(initialized_only=True)
    return [each for each in found if each is not own and each.vendor == "postgresql"]


def _count(**_: Any) -> None:
    global _created  # noqa: PLW0603 - one count a process
    _created += 1


connection_created.connect(_count, dispatch_uid="hybridcloud.outbox.drain.boundary")
