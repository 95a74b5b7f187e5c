"""Reads what claimed shards hold, after they were claimed (rule 1)."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.drain.shard import FailureRow, Failures, Shard, shards_of
from hybridcloud.outbox.store.session import NO_BOUND, Engine, Rows, int_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridcloud.outbox.store.key import ShardKey

NOTHING_KNOWN: Final[Mapping[ShardKey, int]] = MappingProxyType({})
"""Of no shard is it known up to which id nothing is left."""


class Reader(Protocol):
    """Says how messages of shards are read: a flush reads less than a drain."""

    def __call__(self, keys: Sequence[ShardKey]) -> tuple[str, dict[str, Any]]:
        """Return the name of the statement and its parameters but the keys."""
        ...


def read_all(bound: int = NO_BOUND, *, limits: Limits = LIMITS) -> Reader:
    """Read shards from their heads, up to a bound, a fair share of each."""

    def statement(keys: Sequence[ShardKey]) -> tuple[str, dict[str, Any]]:
        share = max(limits.least_per_shard, limits.messages_per_pass // max(1, len(keys)))
        return "fetch", {"bound": bound, "most": share}

    return statement


def read_shards(
    engine: Engine,
    keys: Sequence[ShardKey],
    read: Reader,
    known: Mapping[ShardKey, int],
    rows: Rows | None = None,
) -> list[Shard]:
    """Read the messages of claimed shards, and what is on record of them.

    ``known`` has the ids up to which nothing of a shard is left, ``rows`` what was read so already.
    """
    name, params = read(keys)
    if rows is None:
        afters = int_array(known.get(key, 0) for key in keys) if known else _heads(len(keys))
        rows = engine.query(name, {"afters": afters, **params, **engine.keys(keys)})
    shards = shards_of(keys, rows)
    # Read again as of one moment: else a message that is brought back between two reads is in neither.
    flagged = [shard.key for shard in shards if shard.touched]
    if flagged:
        exact = _read_flagged(engine, flagged, read)
        shards = [shard for shard in shards if not shard.touched] + exact
        # In key order again: a cut pass leaves the last ones, wherever they were read.
        shards.sort(key=attrgetter("key"))
    if name == "fetch":
        for shard in shards:
            shard.is_whole = len(shard.messages) < params["most"]
    return shards


def _heads(count: int) -> str:
    return f"{{{','.join('0' * count)}}}"


def _read_flagged(engine: Engine, keys: Sequence[ShardKey], read: Reader) -> list[Shard]:
    """Read shards with parked messages or failures, as of one moment."""
    name, params = read(keys)
    with engine.snapshot() as snapshot:
        rows = snapshot.query(name, {"afters": _heads(len(keys)), **params, **engine.keys(keys)})
        shards = shards_of(keys, rows)
        wanted = [
            (position, shard.key, *group)
            for position, shard in enumerate(shards)
            for group in {(m.category, m.object_identifier) for m in shard.messages}
        ]
        groups = {
            **engine.keys([each[1] for each in wanted]),
            "ns": [each[0] for each in wanted],
            "categories": [each[2] for each in wanted],
            "objects": [each[3] for each in wanted],
        }
        parked = snapshot.query("parked_of_groups", groups)
        own_keys = engine.keys([shard.key for shard in shards])
        failures = snapshot.query("failures_of_shards", own_keys)
    # Sorted, since groupby joins neighbours only.
    for position, rows_of_shard in groupby(sorted(parked), key=itemgetter(0)):
        found: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for _, message_id, category, object_identifier, reason in rows_of_shard:
            found.setdefault((category, object_identifier), []).append((message_id, reason))
        shards[position].parked = found
    for position, rows_of_shard in groupby(sorted(failures), key=itemgetter(0)):
        shards[position - 1].failures = Failures([FailureRow(*row[1:]) for row in rows_of_shard])
    return shards
