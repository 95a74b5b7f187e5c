"""Where messages enter a transaction.

`outbox_context` decides whether messages saved inside are flushed after the
commit, and gathers them for one INSERT at the end of its block.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections, transaction

from hybridcloud.causation import current_headers
from hybridcloud.errors import InvalidOutboxError, OutboxTransactionError
from hybridcloud.outbox.write.buffer import Buffer
from hybridcloud.outbox.write.insert import Row, as_row, insert
from silos.guard import open_blocks
from silos.router import current_alias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.transaction import Atomic

    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.after_commit import Flush, FlushChoice


class _State(NamedTuple):
    flush: FlushChoice
    buffers: Mapping[str, Buffer]


_OUTSIDE: Final = _State(flush=True, buffers={})
# Context-local, so right under threads and async alike.
_state: ContextVar[_State] = ContextVar("hybridcloud_outbox_context", default=_OUTSIDE)


@contextmanager
def outbox_context(
    inner: Atomic | None = None,
    flush: Flush = None,
) -> Iterator[Atomic | None]:
    """Run a block whose messages commit with it and are flushed after it.

    Messages saved inside are written as one INSERT at the end of the outermost
    block, in its transaction; of several about one object, in a scope that
    coalesces, only the last. A savepoint that rolls back takes its own along.

    Args:
        inner: the transaction to open, such as ``transaction.atomic()``. One
            without ``using`` is opened on the current silo's database.
        flush: whether messages saved inside are flushed after the commit, or how: ``"sync"``,
            ``"kick"``, ``"cron"`` (not at all, like False), True as the settings say; None: as in
            the block around this one, else yes.

    Yields:
        ``inner``.

    Raises:
        OutboxTransactionError: there is something to flush after a commit, and no transaction.
        ValueError: ``flush`` is something else.
    """
    choice = flush_choice(flush)
    if inner is None:
        if choice and not any(map(open_blocks, connections.all(initialized_only=True))):
            raise OutboxTransactionError(
                "No transaction to flush after: outbox_context() was entered outside of one. Give "
                "it one, outbox_context(transaction.atomic()), or say flush=False."
            )
        # What a block around this one gathers, it gathers here as well.
        with _entered(_State(choice, _state.get().buffers)):
            yield None
        return
    # Django would open its default database, where the current silo's tables may not be.
    if inner.using is None:
        inner.using = current_alias()
    with inner, _gathering(connections[inner.using], flush=choice):
        yield inner


def joined_context(using: str, *, flush: Flush) -> AbstractContextManager[Any]:
    """Gather messages like `outbox_context`, in the open transaction if any.

    An error that Django forgives an open transaction, such as `ProtectedError`,
    is so forgiven here as well.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        return _gathering(connection, flush=flush_choice(flush))
    return outbox_context(transaction.atomic(using=using), flush)


def write_messages(messages: Sequence[OutboxTable], *, using: str, flush: Flush = None) -> None:
    """Check messages and write them, in the open transaction or their own.

    Inside an `outbox_context` with a transaction they are buffered, and get
    their ids at its end; else they are inserted at once, one INSERT per table.
    ``flush`` says whether they are flushed after the commit; None: as the
    context says, else yes.

    Raises:
        InvalidOutboxError: a category does not belong to its scope, is unknown
            or retired, or a message was saved before. Nothing was written then.
    """
    choice = flush_choice(flush)
    # All are checked before the first is written.
    for message in messages:
        if message.pk is not None:
            raise InvalidOutboxError(
                f"Saved before: {message}. A message is never changed; save a new one."
            )
    headers = current_headers()
    write_rows([as_row(each, headers=headers, flush=choice) for each in messages], using=using)


def write_rows(rows: Sequence[Row], *, using: str) -> None:
    """Write messages that are checked and encoded."""
    if not rows:
        return
    connection = connections[using]
    buffer = buffer_of(connection)
    if buffer is not None:
        buffer.add(rows)
    elif connection.in_atomic_block:
        insert(connection, rows)
    else:
        # Rows of several tables are several statements.
        with transaction.atomic(using=using):
            insert(connection, rows)


def write_buffered(connection: BaseDatabaseWrapper) -> None:
    """Write what a connection buffers, before messages that SQL makes."""
    buffer = buffer_of(connection)
    if buffer is not None:
        buffer.write()


def is_gathering() -> bool:
    """Say whether a block around this gathers messages, on any database."""
    return bool(_state.get().buffers)


def flush_choice(flush: Flush) -> FlushChoice:
    """Return what the caller or the model said, else what the context says.

    Raises:
        ValueError: it is not one of the choices.
    """
    if flush is None:
        return _state.get().flush
    if flush == "cron":
        return False
    # By identity: 1 is no choice, though it equals True.
    if flush is True or flush is False or flush in ("sync", "kick"):
        return flush
    raise ValueError(
        f"Wrong flush {flush!r}. Use 'sync', 'kick', 'cron', True (as HYBRIDCLOUD['FLUSH'] says), "
        f"False, or None (as the context says)."
    )


def buffer_of(connection: BaseDatabaseWrapper) -> Buffer | None:
    """Return what gathers a connection's messages, if a block does."""
    buffer = _state.get().buffers.get(connection.alias)
    # A context copied to another thread, or kept beyond the block, is not in its transaction.
    if buffer is None or not buffer.is_open or buffer.connection is not connection:
        return None
    return buffer


@contextmanager
def _gathering(connection: BaseDatabaseWrapper, *, flush: FlushChoice) -> Iterator[None]:
    """Buffer what the block writes, in the outermost block's buffer."""
    buffers = _state.get().buffers
    if buffer_of(connection) is not None:
        with _entered(_State(flush, buffers)):
            yield
        return
    buffer = Buffer(connection)
    # The state is reset first, then the buffer is written: nothing is added to it meanwhile.
    with buffer.opened(), _entered(_State(flush, {**buffers, connection.alias: buffer})):
        yield


@contextmanager
def _entered(state: _State) -> Iterator[None]:
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)
