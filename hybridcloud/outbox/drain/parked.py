"""Brings parked messages back: without it what was delayed or held would never run (ENGINE 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud.outbox.declare.category import all_categories
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.drain.call import has_receiver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.store.session import Engine, Key
    from hybridcloud.outbox.store.switches import Switches

_CATEGORY_LEVEL: Final = 1
_MOST: Final = 1000

_DELAYED: Final = (
    "p.reason = 'delayed' AND (p.scheduled_for <= clock_timestamp() OR %(delayed_too)s)"
)
_UNKNOWN: Final = "p.reason = 'unknown' AND p.category = ANY(%(known)s::integer[])"
# Held messages come back when no switch names them and nothing of theirs waits for a next try. Once
# a failure is due, only the oldest held message of the group that failed comes back to be tried; the
# rest follows its success. In scopes that do not coalesce a delayed lower id of the key holds them.
_HELD: Final = """p.reason = 'held' AND NOT ({switched})
   AND NOT EXISTS (
       SELECT 1 FROM {failure} f
        WHERE ({f_key}) = ({p_key}) AND f.category = p.category
          AND (f.level = 1 OR (f.level = 2 AND f.object_identifier = p.object_identifier))
          AND %(heed)s
          AND NOT (f.scheduled_for <= clock_timestamp() AND f.object_identifier = p.object_identifier
                   AND NOT EXISTS (SELECT 1 FROM {parked} q
                                    WHERE ({q_key}) = ({p_key}) AND q.category = p.category
                                      AND q.object_identifier = p.object_identifier
                                      AND q.reason = 'held' AND q.id < p.id)))
   AND NOT (p.shard_scope = ANY(%(ordered)s::integer[]) AND EXISTS (
       SELECT 1 FROM {parked} d
        WHERE ({d_key}) = ({p_key}) AND d.category = p.category
          AND d.object_identifier = p.object_identifier
          AND d.reason = 'delayed' AND d.id < p.id))"""
_FREED_CATEGORY: Final = (
    """p.reason = 'held' AND ({p_key}) = ({one_key}) AND p.category = %(category)s"""
)
# By the index of groups: a walk in the order of ids would read all that is parked for each object that recovers.
_FREED_OBJECT: Final = """p.id = ANY(ARRAY(
    SELECT h.id FROM {parked} h
     WHERE ({h_key}, h.category) = ({one_key}, %(category)s)
       AND h.object_identifier BETWEEN %(object)s AND %(object)s AND h.reason = 'held'
     ORDER BY {h_key}, h.category, h.object_identifier, h.id LIMIT 1000))"""


class Freed(NamedTuple):
    """What a success lets go on: an object's messages, or a whole category's in a shard."""

    key: Key
    level: int
    category: int
    object_identifier: int


def bring_back(
    engine: Engine,
    switches: Switches,
    *,
    heed_backoff: bool = True,
    include_delayed: bool = False,
) -> int:
    """Move parked messages that may run again to the outbox, at most 1,000 of each kind.

    Args:
        engine: the outbox table.
        switches: the kill switches in force; what they name stays.
        heed_backoff: leave what waits for its next try.
        include_delayed: also what is delayed and not due.

    Returns:
        How many messages were moved.
    """
    switched, switch_params = _switched(engine, switches)
    params = {
        **switch_params,
        "delayed_too": include_delayed,
        "known": [each.value for each in all_categories() if has_receiver(engine, each.value)],
        "heed": heed_backoff,
        "ordered": [scope.value for scope in all_scopes() if not scope.policy.coalesce],
    }
    if not engine.query("any_parked", {}):
        return 0
    moved = 0
    for which in (_DELAYED, _UNKNOWN, _HELD):
        moved += len(engine.query("bring_back", params, switched=switched, which=which))
    return moved


def bring_back_freed(engine: Engine, freed: Sequence[Freed]) -> None:
    """Move back what waited for a group that has now succeeded."""
    for key, level, category, object_identifier in freed:
        params = {**engine.keys([key]), "category": category, "object": object_identifier}
        which = _FREED_CATEGORY if level == _CATEGORY_LEVEL else _FREED_OBJECT
        while len(engine.query("bring_back", params, which=which)) >= _MOST:
            pass


def _switched(engine: Engine, switches: Switches) -> tuple[str, dict[str, Any]]:
    """Return the condition under which a switch on a category names a message, and its parameters."""
    parts, params = ["false"], {}
    for number, switch in enumerate(switches.categories):
        names = {
            "category": switch.category,
            "shard_scope": switch.scope,
            "shard_identifier": switch.identifier,
            "cell_name": switch.cell if "cell_name" in engine.tables.sharding_columns else None,
        }
        tests = []
        for column, value in names.items():
            if value is not None:
                tests.append(f"p.{column} = %(switch_{number}_{column})s")
                params[f"switch_{number}_{column}"] = value
        parts.append(f"({' AND '.join(tests)})")
    return " OR ".join(parts), params
