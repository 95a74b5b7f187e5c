"""Kill switches: without them a handler that does harm could be stopped by a deploy only (rule 5).

A switch names a scope, a shard identifier, a target cell and a category; each
may be left out, which means any. Without a category it stops whole shards;
with one it parks that category's messages and lets the rest of the shard go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud import options
from hybridcloud.outbox.declare.category import OutboxCategory, all_categories
from hybridcloud.outbox.declare.scope import OutboxScope, all_scopes
from hybridcloud.registry import cell_is_broken
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hybridcloud.outbox.store.session import Key
    from hybridcloud.outbox.store.tables import OutboxTable

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


@dataclass(frozen=True)
class Switches:
    """The switches in force, in the forms in which the engine asks for them.

    Attributes:
        shards: switches that stop whole shards.
        categories: switches that stop a category in the shards that they name.
        scopes: scopes that are stopped in every cell.
        cells: target cells that are stopped in every scope.
        everything: whether a switch names nothing, and so stops all.
    """

    shards: tuple[Switch, ...] = ()
    categories: tuple[Switch, ...] = ()
    scopes: frozenset[int] = field(default=frozenset())
    cells: frozenset[str] = field(default=frozenset())
    everything: bool = False

    def stops(self, key: Key) -> bool:
        """Say whether a switch or a breaker stops the whole shard of this key."""
        cell = key[0] if len(key) > 2 else None
        stopped_cell = cell is not None and is_cell_stopped(self, cell)
        return stopped_cell or self.stops_shard(key[-2], key[-1], cell)

    def stops_shard(self, scope: int, identifier: int, cell: str | None) -> bool:
        """Say whether the whole shard is switched off."""
        return any(_names(switch, scope, identifier, cell) for switch in self.shards)

    def stopped_categories(self, scope: int, identifier: int, cell: str | None) -> frozenset[int]:
        """Return the categories that are switched off in the shard."""
        return frozenset(
            switch.category
            for switch in self.categories
            if switch.category is not None and _names(switch, scope, identifier, cell)
        )

    def scopes_of(self, cell: str | None) -> frozenset[int]:
        """Return the scopes that are stopped for a target cell."""
        return self.scopes | {
            switch.scope
            for switch in self.shards
            if switch.scope is not None and switch.identifier is None and switch.cell == cell
        }

    def shards_of(self, cell: str | None) -> list[tuple[int, int]]:
        """Return the single shards that are stopped for a target cell, as (scope, identifier)."""
        scopes = [scope.value for scope in all_scopes()]
        return [
            (scope, switch.identifier)
            for switch in self.shards
            if switch.identifier is not None and switch.cell in (None, cell)
            for scope in (scopes if switch.scope is None else [switch.scope])
        ]

    def named_shards(self, cells: Sequence[str | None]) -> list[tuple[Any, ...]]:
        """Return the keys of single shards that are stopped, for these target cells; None: a cell's own table."""
        return [
            (scope, identifier) if cell is None else (cell, scope, identifier)
            for cell in cells
            for scope, identifier in self.shards_of(cell)
        ]


def current() -> Switches:
    """Return the switches in force: the runtime options, and cells whose breaker is open."""
    return _compile(
        _frozen(options.get(DISABLED_SHARDS)),
        tuple(options.get(DISABLED_ORGANIZATIONS)),
        tuple(options.get(DISABLED_USERS)),
    )


def is_cell_stopped(switches: Switches, cell: str) -> bool:
    """Say whether nothing may be sent to a cell now: it is switched off, or its breaker is open."""
    return switches.everything or cell in switches.cells or cell_is_broken(cell)


def _names(switch: Switch, scope: int, identifier: int, cell: str | None) -> bool:
    return (
        switch.scope in (None, scope)
        and switch.identifier in (None, identifier)
        and switch.cell in (None, cell)
    )


def _frozen(raw: Iterable[Mapping[str, Any]]) -> tuple[tuple[tuple[str, Any], ...], ...]:
    return tuple(tuple(sorted(entry.items())) for entry in raw if isinstance(entry, dict))


@lru_cache(maxsize=16)
def _compile(
    raw: tuple[tuple[tuple[str, Any], ...], ...],
    organizations: tuple[int, ...],
    users: tuple[int, ...],
) -> Switches:
    switches = [_read(dict(entry)) for entry in raw]
    for name, identifiers in (("ORGANIZATION_SCOPE", organizations), ("USER_SCOPE", users)):
        for scope in all_scopes():
            if scope.name == name:
                switches += [Switch(scope.value, int(identifier)) for identifier in identifiers]
    whole = tuple(switch for switch in switches if switch.category is None)
    return Switches(
        shards=whole,
        categories=tuple(switch for switch in switches if switch.category is not None),
        scopes=frozenset(
            switch.scope
            for switch in whole
            if switch.scope is not None and switch.identifier is None and switch.cell is None
        ),
        cells=frozenset(
            switch.cell
            for switch in whole
            if switch.cell is not None and switch.scope is None and switch.identifier is None
        ),
        everything=Switch() in whole,
    )


def _read(entry: Mapping[str, Any]) -> Switch:
    def given(name: str) -> Any:
        value = entry.get(name)
        return None if value in (None, "*", "") else value

    identifier, cell = given("identifier"), given("cell")
    return Switch(
        scope=_number(given("scope"), all_scopes()),
        identifier=None if identifier is None else int(identifier),
        cell=None if cell is None else str(cell),
        category=_number(given("category"), all_categories()),
    )


def _number(
    value: int | str | None, members: Iterable[OutboxScope] | Iterable[OutboxCategory]
) -> int | None:
    """Return the number of a scope or category that is given by number or name; -1 for an unknown name."""
    if value is None or isinstance(value, int):
        return value
    return next((member.value for member in members if member.name == value), -1)


def is_switched_off(outbox: type[OutboxTable], key: Key) -> bool:
    """Say whether a kill switch stops the whole shard."""
    switches = current()
    control = outbox.silo_mode is SiloMode.CONTROL
    if control and (key[0] in switches.cells):
        return True
    return switches.stops_shard(key[-2], key[-1], key[0] if control else None)
