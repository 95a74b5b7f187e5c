"""Kill switches, which stop handlers without a deploy (rule 5).

A switch names a scope, a shard identifier, a target cell and a category; what is left out means
any. Without a category it stops whole shards; with one it parks the messages of that category.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud import options
from hybridcloud.outbox.declare.category import all_categories
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.store.key import ShardKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from enum import IntEnum

DISABLED_SHARDS: Final = "hybridcloud.disabled_shards"
DISABLED_ORGANIZATIONS: Final = "hybrid_cloud.authentication.disabled_organization_shards"
DISABLED_USERS: Final = "hybrid_cloud.authentication.disabled_user_shards"

options.register(
    DISABLED_SHARDS,
    list,
    [],
    doc="Switches: objects with any of scope, identifier, cell, category; what is left out is any.",
)
options.register(
    DISABLED_ORGANIZATIONS,
    list,
    [],
    doc="Organizations whose ORGANIZATION_SCOPE shards are stopped.",
)
options.register(DISABLED_USERS, list, [], doc="Users whose USER_SCOPE shards are stopped.")


class Switch(NamedTuple):
    """One switch; None means any."""

    scope: int | None = None
    identifier: int | None = None
    cell: str | None = None
    category: int | None = None


class Switches(NamedTuple):
    """The switches in force, in the forms that the engine asks for.

    Attributes:
        shards: switches that stop whole shards.
        categories: switches that stop a category in the shards that they name.
        scopes: scopes that are stopped in every cell.
        cells: target cells that are stopped in every scope.
        everything: whether a switch names nothing, and so stops all.
    """

    shards: tuple[Switch, ...] = ()
    categories: tuple[Switch, ...] = ()
    scopes: frozenset[int] = frozenset()
    cells: frozenset[str] = frozenset()
    everything: bool = False

    def stops(self, key: ShardKey) -> bool:
        """Say whether a switch stops the whole shard."""
        return any(_names(switch, key) for switch in self.shards)

    def stopped_categories(self, key: ShardKey) -> frozenset[int]:
        """Return the categories that are switched off in the shard."""
        named = (switch.category for switch in self.categories if _names(switch, key))
        return frozenset(category for category in named if category is not None)

    def scopes_of(self, cell: str | None) -> frozenset[int]:
        """Return the scopes that are stopped for a target cell."""
        whole = (each for each in self.shards if each.identifier is None and each.cell == cell)
        return self.scopes.union(each.scope for each in whole if each.scope is not None)

    def shards_of(self, cell: str | None) -> list[tuple[int, int]]:
        """Return the (scope, identifier) of shards stopped for a target cell."""
        scopes = [scope.value for scope in all_scopes()]
        return [
            (scope, switch.identifier)
            for switch in self.shards
            if switch.identifier is not None and switch.cell in (None, cell)
            for scope in (scopes if switch.scope is None else [switch.scope])
        ]

    def scopes_in_cells(self) -> list[tuple[str, int]]:
        """Return the (cell, scope) of scopes that are stopped in one cell."""
        return [
            (switch.cell, switch.scope)
            for switch in self.shards
            if switch.cell is not None and switch.scope is not None and switch.identifier is None
        ]

    def named_shards(self, cells: Sequence[str | None]) -> list[ShardKey]:
        """Return the stopped shards of target cells; None: a cell's own table."""
        return [ShardKey(*own, cell) for cell in cells for own in self.shards_of(cell)]


def current() -> Switches:
    """Return the switches in force, from the runtime options."""
    entries = (each for each in options.get(DISABLED_SHARDS) if isinstance(each, dict))
    return _compile(
        # As tuples, which the cache can hash.
        tuple(tuple(sorted(entry.items())) for entry in entries),
        tuple(options.get(DISABLED_ORGANIZATIONS)),
        tuple(options.get(DISABLED_USERS)),
    )


def _names(switch: Switch, key: ShardKey) -> bool:
    # Both begin with scope, identifier and cell.
    return all(named in (None, own) for named, own in zip(switch, key, strict=False))


@lru_cache(maxsize=16)
def _compile(
    raw: tuple[tuple[tuple[str, Any], ...], ...], orgs: tuple[int, ...], users: tuple[int, ...]
) -> Switches:
    switches = [_read(dict(entry)) for entry in raw]
    for name, identifiers in (("ORGANIZATION_SCOPE", orgs), ("USER_SCOPE", users)):
        for scope in all_scopes():
            if scope.name == name:
                switches += [Switch(scope.value, int(identifier)) for identifier in identifiers]
    whole = tuple(each for each in switches if each.category is None)
    scopes = (each.scope for each in whole if each == Switch(scope=each.scope))
    cells = (each.cell for each in whole if each == Switch(cell=each.cell))
    return Switches(
        shards=whole,
        categories=tuple(each for each in switches if each.category is not None),
        scopes=frozenset(scope for scope in scopes if scope is not None),
        cells=frozenset(cell for cell in cells if cell is not None),
        everything=Switch() in whole,
    )


def _read(entry: Mapping[str, Any]) -> Switch:
    given = {name: value for name, value in entry.items() if value not in (None, "*", "")}
    return Switch(
        scope=_number(given.get("scope"), all_scopes()),
        identifier=int(given["identifier"]) if "identifier" in given else None,
        cell=str(given["cell"]) if "cell" in given else None,
        category=_number(given.get("category"), all_categories()),
    )


def _number(value: int | str | None, members: Iterable[IntEnum]) -> int | None:
    """Return the number of a scope or category, given by number or name."""
    # -1 for an unknown name matches nothing, whereas None would match everything.
    if value is None or isinstance(value, int):
        return value
    return next((member.value for member in members if member.name == value), -1)
