"""Brings parked messages back to the outbox once they may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud.outbox.declare.category import all_categories
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.drain.gate import has_receiver
from hybridcloud.outbox.store.state import Level
from hybridcloud.outbox.store.templates import fragments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.store.key import ShardKey
    from hybridcloud.outbox.store.session import Engine
    from hybridcloud.outbox.store.switches import Switches

_MOST: Final = 1000
"""Messages that one statement moves."""


class Freed(NamedTuple):
    """The object, or the category of a shard, that a success frees."""

    key: ShardKey
    level: int
    category: int
    object_identifier: int


def bring_back(
    engine: Engine, switches: Switches, *, heed_backoff: bool = True, include_delayed: bool = False
) -> int:
    """Move parked messages that may run again back to the outbox.

    At most 1,000 of each kind (delayed, unknown, held), oldest first. What a switch names stays,
    and what is delayed and not due unless ``include_delayed``.
    """
    # By the code that runs: another release of it may know other categories, and moves those.
    switched, params = _switched(engine, switches)
    params |= {
        "delayed_too": include_delayed,
        "known": [each.value for each in all_categories() if has_receiver(engine, each.value)],
        "heed": heed_backoff,
        "ordered": [scope.value for scope in all_scopes() if not scope.policy.coalesce],
    }
    return sum(
        len(engine.query("bring_back", params, switched=switched, which=fragments()[which]))
        for which in ("delayed", "unknown", "held")
    )


def bring_back_freed(engine: Engine, freed: Sequence[Freed]) -> None:
    """Move back what waited for a group that has now succeeded."""
    for key, level, category, object_identifier in freed:
        params = {**engine.keys([key]), "category": category, "object": object_identifier}
        which = fragments()["freed_category" if level == Level.CATEGORY else "freed_object"]
        # In parts, so that a statement locks a limited number of rows.
        while len(engine.query("bring_back", params, which=which)) >= _MOST:
            pass


def _switched(engine: Engine, switches: Switches) -> tuple[str, dict[str, Any]]:
    """Return the condition for switched-off categories, and its parameters."""
    # "false" stands for no switch at all: nothing is switched off then.
    parts, params = ["false"], {}
    has_cells = "cell_name" in engine.tables.sharding_columns
    for number, switch in enumerate(switches.categories):
        # What names a cell stops control's messages for it, and none of a cell's own.
        if switch.cell is not None and not has_cells:
            continue
        names = {
            "category": switch.category,
            "shard_scope": switch.scope,
            "shard_identifier": switch.identifier,
            "cell_name": switch.cell,
        }
        tests = []
        for column, value in names.items():
            if value is not None:
                tests.append(f"p.{column} = %(switch_{number}_{column})s")
                params[f"switch_{number}_{column}"] = value
        parts.append(f"({' AND '.join(tests)})")
    return " OR ".join(parts), params
