"""What the write path's tests share: the us cell's outbox, what was flushed and told, and blocks that roll back."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hybridcloud.hooks import Hooks
from hybridcloud.outbox import CellOutbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from django.test.utils import CaptureQueriesContext

    from hybridcloud.hooks import Saved
    from hybridcloud.outbox import OutboxBase


class Saves(Hooks):
    """Hears of committed messages."""

    def __init__(self) -> None:
        self.facts: list[Saved] = []

    def saved(self, fact: Saved) -> None:
        self.facts.append(fact)


class _StopError(Exception):
    pass


@contextmanager
def rolled_back(block: AbstractContextManager[Any]) -> Iterator[None]:
    """Run a block that fails at its end, so that its transaction or savepoint rolls back."""
    with suppress(_StopError), block:
        yield
        raise _StopError


def stored() -> list[tuple[int, int, Any]]:
    """Return (category, object, payload) of the current cell's messages, by id."""
    rows = CellOutbox.objects.order_by("id")
    return list(rows.values_list("category", "object_identifier", "payload"))


def objects() -> list[int]:
    """Return the objects of the current cell's messages, by id."""
    return [each[1] for each in stored()]


def inserts(queries: CaptureQueriesContext) -> list[str]:
    """Return the INSERTs among the captured statements."""
    return [each["sql"] for each in queries.captured_queries if "INSERT INTO" in each["sql"]]


def last_id(outbox: type[OutboxBase] = CellOutbox) -> int:
    """Return the newest message's id, 0 for none."""
    return outbox.objects.order_by("-id").values_list("id", flat=True).first() or 0


@contextmanager
def recorded(outbox: type[OutboxBase] = CellOutbox) -> Iterator[list[tuple[Any, ...]]]:
    """Record the messages that the block writes, as (*shard key, category, object, payload)."""
    seen: list[tuple[Any, ...]] = []
    before = last_id(outbox)
    yield seen
    names = (*outbox.coalesced_columns, "payload")
    seen += outbox.objects.filter(id__gt=before).order_by("id").values_list(*names)
