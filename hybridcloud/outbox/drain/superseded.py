"""Looks past the end of what a pass reads: without it a deep shard of few objects would call them once a pass.

A pass reads so many messages of a shard and no more. Where those are about a
few objects again and again, most of what lies behind them supersedes them. Of
that only the ids are read, and of each object the newest message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.drain.coalesce import CATEGORY, FLAGGED, ID, OBJECT, Group
from hybridcloud.outbox.store.session import int_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.store.session import Engine

_REPEATED: Final = 4
"""Messages of each object, on average, from which it is worth a look."""
_MOST: Final = 50_000


def look_further(engine: Engine, shard: Shard, read: Mapping[str, Any]) -> None:
    """Let the groups of a shard take in what supersedes them behind the last message read.

    Args:
        engine: the statements of the outbox table.
        shard: a claimed shard, as it was read.
        read: the parameters of the reading: ``most`` messages up to ``bound``.
    """
    if shard.touched or not shard.policy.coalesce or len(shard.messages) < read["most"]:
        return
    objects = {(message[CATEGORY], message[OBJECT]) for message in shard.messages}
    if len(objects) * _REPEATED > len(shard.messages):
        return
    rows = engine.query(
        "fetch_superseding",
        {
            **engine.keys([shard.key]),
            "after": max(message[ID] for message in shard.messages),
            "bound": read["bound"],
            "most": _MOST,
            "categories": int_array(category for category, _ in objects),
            "objects": int_array(each for _, each in objects),
        },
    )
    # Something was parked meanwhile, and might be older than what is here: the next pass asks.
    if rows and not rows[0][FLAGGED]:
        shard.newer = {(row[CATEGORY], row[OBJECT]): (row[:-1], row[-1]) for row in rows}


def with_newer(shard: Shard, group: Group) -> Group:
    """Return a group with what supersedes it."""
    newer = shard.newer.get((group.newest[CATEGORY], group.newest[OBJECT]))
    if newer is None:
        return group
    message, ids = newer
    return Group(message, group.ids + sorted(ids), group.age)
