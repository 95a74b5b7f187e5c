"""Turns a shard's messages into groups, each of which is one handler call.

Pure: no database, no clock.
"""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

moment: Final = datetime.fromisoformat
"""Reads a time as PostgreSQL writes it, in the time zone of the session."""


class Message(NamedTuple):
    """A message as it was read; times and JSON as PostgreSQL writes them.

    Attributes:
        n: the position of its shard in the claim, from 1.
        id: its id.
        category: its category's number.
        object_identifier: its object.
        payload: JSON text, or None.
        scheduled_for: when it was due; None: when it was added.
        date_added: when it was written.
        headers: JSON text, or None.
        age: seconds since it was due, when it was read.
        flagged: whether anything of its shard is parked or failed.
    """

    n: int
    id: int
    category: int
    object_identifier: int
    payload: str | None
    scheduled_for: str | None
    date_added: str
    headers: str | None
    age: float
    flagged: bool

    def dates(self) -> tuple[datetime, datetime]:
        """Return when it was added and when it was due."""
        added, due = moment(self.date_added), self.scheduled_for
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

    @classmethod
    def of(cls, message: Message) -> Group:
        """Return the group of a message that is alone."""
        return cls(message, [message.id], message.age)


type Groups = tuple[Sequence[Message], Mapping[int, Group]]
"""The newest message of each group, and by its id the groups of several messages.

Most groups are one message, and need no more than it. They are in the order of their oldest
message, so that a parent that was created before its child is handled before it.
"""
_NONE: Final[Mapping[int, Group]] = MappingProxyType({})
_id_of: Final = attrgetter("id")
# Category and object, by position: this runs for each message.
_object_of: Final = itemgetter(2, 3)


def group_messages(messages: Sequence[Message], *, coalesce: bool) -> Groups:
    """Group one shard's messages.

    Args:
        messages: ascending by id.
        coalesce: whether messages of one (category, object) are one group, of
            which the newest is handled; else each is a group of its own.
    """
    if not coalesce:
        return messages, _NONE
    # Most shards have one message of each object, and need no groups.
    if len(set(map(_object_of, messages))) == len(messages):
        return messages, _NONE
    # A dict keeps the order of its first keys: that of each group's oldest message (decision 5).
    same: dict[tuple[int, int], list[Message]] = {}
    for message in messages:
        same.setdefault(_object_of(message), []).append(message)
    larger = {
        each[-1].id: Group(each[-1], list(map(_id_of, each)), each[0].age)
        for each in same.values()
        if len(each) > 1
    }
    return [each[-1] for each in same.values()], larger
