"""Reads what claimed shards hold: without it a pass would be about SQL as much as about messages."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from hybridcloud.outbox.drain.coalesce import CATEGORY, OBJECT
from hybridcloud.outbox.drain.shard import Failures, Shard, shards_of
from hybridcloud.outbox.drain.superseded import look_further
from hybridcloud.outbox.store.session import NO_BOUND, Engine, Key, Rows, int_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MESSAGES_PER_PASS: Final = 5000
LEAST_PER_SHARD: Final = 20


class Reader(Protocol):
    """Says how messages of shards are read; a sync flush reads differently from a drain."""

    def __call__(self, keys: Sequence[Key]) -> tuple[str, dict[str, Any]]:
        """Return the name of the statement and its parameters but the keys."""
        ...


def read_all(bound: int = NO_BOUND) -> Reader:
    """Read shards from their heads, up to a bound, a fair share of each."""

    def statement(keys: Sequence[Key]) -> tuple[str, dict[str, Any]]:
        share = max(LEAST_PER_SHARD, MESSAGES_PER_PASS // max(1, len(keys)))
        return "fetch", {"bound": bound, "most": share}

    return statement


def read_shards(
    engine: Engine,
    keys: Sequence[Key],
    read: Reader,
    known: Mapping[Key, int],
    rows: Rows | None = None,
) -> list[Shard]:
    """Read the messages of claimed shards, and of their exceptions what concerns these.

    Args:
        engine: the statements of the outbox table.
        keys: the shards.
        read: how.
        known: shards with the id up to which nothing of them is left.
        rows: what was read so already; None: nothing.
    """
    name, params = read(keys)
    if rows is None:
        rows = engine.query(name, {**_afters(keys, known), **params, **engine.keys(keys)})
    shards = shards_of(keys, rows)
    flagged = [shard.key for shard in shards if shard.touched]
    if flagged:
        exact = _read_flagged(engine, flagged, read)
        shards = [shard for shard in shards if not shard.touched] + exact
        shards.sort(key=attrgetter("key"))
    if name == "fetch":
        for shard in shards:
            shard.is_whole = len(shard.messages) < params["most"]
            if not shard.is_whole:
                look_further(engine, shard, params)
    return shards


def _afters(keys: Sequence[Key], known: Mapping[Key, int]) -> dict[str, Any]:
    """Return where the reading of each shard begins."""
    return {"afters": int_array(known.get(key, 0) for key in keys) if known else _heads(len(keys))}


def _heads(count: int) -> str:
    return f"{{{','.join('0' * count)}}}"


def _read_flagged(engine: Engine, keys: Sequence[Key], read: Reader) -> list[Shard]:
    """Read shards with parked messages or failures: everything as of one moment."""
    name, params = read(keys)
    with engine.snapshot() as snapshot:
        rows = snapshot.query(name, {"afters": _heads(len(keys)), **params, **engine.keys(keys)})
        shards = shards_of(keys, rows)
        wanted = [
            (position, shard.key, *group)
            for position, shard in enumerate(shards)
            for group in {(m[CATEGORY], m[OBJECT]) for m in shard.messages}
        ]
        parked = snapshot.query(
            "parked_of_groups",
            {
                **engine.keys([each[1] for each in wanted]),
                "ns": [each[0] for each in wanted],
                "categories": [each[2] for each in wanted],
                "objects": [each[3] for each in wanted],
            },
        )
        failures = snapshot.query(
            "failures_of_shards", engine.keys([shard.key for shard in shards])
        )
    for position, rows_of_shard in groupby(sorted(parked), key=itemgetter(0)):
        groups: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for _, message_id, category, object_identifier, reason in rows_of_shard:
            groups.setdefault((category, object_identifier), []).append((message_id, reason))
        shards[position].parked = groups
    for position, rows_of_shard in groupby(sorted(failures), key=itemgetter(0)):
        shards[position - 1].failures = Failures([row[1:] for row in rows_of_shard])
    return shards
