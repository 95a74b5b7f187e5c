"""Turns a shard's messages into groups: without it each message would cost a handler call of its own.

Pure: no database, no clock. A message is a row as the fetch gives it.
"""

from __future__ import annotations

from datetime import datetime
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

type Message = tuple[int, int, int, int, str | None, str | None, str, str | None, float, bool]
"""n of the shard, id, category, object, payload, scheduled_for (None: as date_added), date_added, headers,
age in s, flagged; times as PostgreSQL writes them."""

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
moment: Final = datetime.fromisoformat
"""Reads a time as PostgreSQL writes it, in the time zone of the session."""
_id_of: Final = itemgetter(ID)
_object_of: Final = itemgetter(CATEGORY, OBJECT)


def dates_of(message: Message) -> tuple[datetime, datetime]:
    """Return when a message was added and when it was due; exact to the microsecond, as PostgreSQL is."""
    added, due = moment(message[DATE_ADDED]), message[SCHEDULED_FOR]
    return added, added if due is None else moment(due)


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


type Groups = tuple[Sequence[Message], Mapping[int, Group]]
"""A shard's messages, grouped: the message of each group that the handler is called with, and, by its id, the
groups of several messages. Most groups are one message, and need no more than it.

They are in the order of their oldest message, so that a parent that was created before its child is handled
before it.
"""
_NONE: Final[Mapping[int, Group]] = MappingProxyType({})


def group_messages(messages: Sequence[Message], *, coalesce: bool) -> Groups:
    """Group one shard's messages.

    Args:
        messages: ascending by id.
        coalesce: whether messages of one (category, object) are one group, of
            which the newest is handled; else each is a group of its own.
    """
    if not coalesce or len(messages) == 1:
        return messages, _NONE
    if len(set(map(_object_of, messages))) == len(messages):
        return messages, _NONE
    same: dict[tuple[int, int], list[Message]] = {}
    for message in messages:
        same.setdefault(_object_of(message), []).append(message)
    larger = {
        each[-1][ID]: Group(each[-1], list(map(_id_of, each)), each[0][AGE])
        for each in same.values()
        if len(each) > 1
    }
    return [each[-1] for each in same.values()], larger


def each_group(groups: Groups, at: int = 0) -> list[Group]:
    """Return the groups themselves, from an index on."""
    newest, larger = groups
    return [
        larger.get(message[ID]) or Group(message, [message[ID]], message[AGE])
        for message in newest[at:]
    ]
