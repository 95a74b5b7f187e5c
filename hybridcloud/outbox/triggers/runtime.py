"""What Python still does around a change whose messages triggers write.

It wakes a drainer after the commit, and passes a handler's causation to the triggers.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, connections, transaction

from hybridcloud.causation import current_headers
from hybridcloud.outbox.store.session import engine_cursor
from hybridcloud.outbox.write.context import write_buffered
from hybridcloud.outbox.write.messages import wake

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.write.after_commit import Flush
    from hybridcloud.outbox.write.mixins import ProducingModel

HEADERS_SETTING: Final = "hybridcloud.headers"


class triggered:  # noqa: N801 - used like a function; a generator would slow down every save
    """Runs a change whose messages triggers write; a drainer is then woken.

    The ids of the messages stay in the database, so a sync flush cannot name them: it is a kick.
    With None as ``flush``, the model, else the context, says whether a drainer is woken.
    """

    __slots__ = ("_flush", "_lent", "_model", "_using")

    def __init__(self, model: type[ProducingModel], using: str, flush: Flush) -> None:
        self._model = model
        self._using = using
        self._flush = model.default_flush if flush is None else flush
        self._lent: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        connection = connections[self._using]
        # What is buffered is older than the change, so it must get lower ids.
        write_buffered(connection)
        if (headers := current_headers()) is not None:
            self._lent = _lent_headers(connection, headers)
            self._lent.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._lent is not None:
            self._lent.__exit__(kind, exc, tb)
        if kind is None:
            wake(self._model, self._using, flush=self._flush)


@contextmanager
def _lent_headers(connection: BaseDatabaseWrapper, headers: Mapping[str, Any]) -> Iterator[None]:
    """Let triggers see the running handler's causation, for this change only."""
    if not connection.in_atomic_block:
        with transaction.atomic(using=connection.alias), _lent_headers(connection, headers):
            yield
        return
    _set(connection, json.dumps(headers))
    try:
        yield
    except BaseException:
        # Some errors leave the transaction usable, and the setting must not outlive the change in
        # it. Where the transaction is lost, the setting is lost too.
        with suppress(DatabaseError):
            _set(connection, "")
        raise
    _set(connection, "")


def _set(connection: BaseDatabaseWrapper, value: str) -> None:
    with engine_cursor(connection) as cursor:
        cursor.execute("SELECT set_config(%s, %s, true)", [HEADERS_SETTING, value])
