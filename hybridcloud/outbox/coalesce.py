"""Turns a shard's messages into groups: without it each message would cost a handler call of its own.

Pure: no database, no clock. A message is a row as the fetch gives it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

type Message = tuple[int, int, int, int, str | None, float | None, float, str | None, float, bool]
"""n of the shard, id, category, object, payload, scheduled_for (None: as date_added), date_added, headers,
age in s, flagged; times in seconds since 1970."""

N: Final = 0
ID: Final = 1
CATEGORY: Final = 2
OBJECT: Final = 3
PAYLOAD: Final = 4
SCHEDULED_FOR: Final = 5
DATE_ADDED: Final = 6
HEADERS: Final = 7
AGE: Final = 8
FLAGGED: Final = 9
_id_of: Final = itemgetter(ID)


def dates_of(message: Message) -> tuple[datetime, datetime]:
    """Return when a message was added and when it was due; exact to the microsecond, as PostgreSQL is."""
    added = datetime.fromtimestamp(message[DATE_ADDED], UTC)
    due = message[SCHEDULED_FOR]
    return added, added if due is None else datetime.fromtimestamp(due, UTC)


class Group(NamedTuple):
    """Messages that one handler call is for.

    Attributes:
        newest: the message that the handler is called with.
        ids: all captured messages, ``newest`` among them, ascending.
        age: seconds since the oldest of them was due, when they were read.
    """

    newest: Message
    ids: list[int]
    age: float


def group_messages(messages: Sequence[Message], *, coalesce: bool) -> list[Group]:
    """Group one shard's messages.

    Args:
        messages: in any order.
        coalesce: whether messages of one (category, object) are one group, of
            which the newest is handled; else each is a group of its own.

    Returns:
        The groups in the order of their oldest message, so that a parent that
        was created before its child is handled before it.
    """
    if len(messages) == 1:
        (message,) = messages
        return [Group(message, [message[ID]], message[AGE])]
    ordered = sorted(messages, key=_id_of)
    if not coalesce:
        return [Group(message, [message[ID]], message[AGE]) for message in ordered]
    same: dict[tuple[int, int], list[Message]] = {}
    for message in ordered:
        key = (message[CATEGORY], message[OBJECT])
        known = same.get(key)
        if known is None:
            same[key] = [message]
        else:
            known.append(message)
    return [Group(each[-1], list(map(_id_of, each)), each[0][AGE]) for each in same.values()]
