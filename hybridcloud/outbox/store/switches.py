"""Kill switches, which stop handlers without a deploy (rule 5).

A switch names a scope, a shard identifier, a target cell and a category; what is left out means
any. Without a category it stops whole shards; with one it parks the messages of that category.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud import options
from hybridcloud.errors import OptionValueError
from hybridcloud.logs import log_limited
from hybridcloud.outbox.declare.scope import all_scopes
from hybridcloud.outbox.store.entries import (
    Switch,
    check_identifiers,
    check_switches,
    read_identifier,
    read_switch,
)
from hybridcloud.outbox.store.key import ShardKey

if TYPE_CHECKING:
    from collections.abc import Sequence

DISABLED_SHARDS: Final = "hybridcloud.disabled_shards"
DISABLED_ORGANIZATIONS: Final = "hybrid_cloud.authentication.disabled_organization_shards"
DISABLED_USERS: Final = "hybrid_cloud.authentication.disabled_user_shards"

options.register(
    DISABLED_SHARDS,
    list,
    [],
    doc="Switches: objects with any of scope, identifier, cell, category; what is left out is any. "
    'What stops everything is {"all": true}.',
    validate=check_switches,
)
options.register(
    DISABLED_ORGANIZATIONS,
    list,
    [],
    doc='Organizations whose shards are stopped, in scopes with switch="organization".',
    validate=check_identifiers,
)
options.register(
    DISABLED_USERS,
    list,
    [],
    doc='Users whose shards are stopped, in scopes with switch="user".',
    validate=check_identifiers,
)
_LOG = logging.getLogger("hybridcloud.outbox")


class Switches(NamedTuple):
    """The switches in force, in the forms that the engine asks for.

    Attributes:
        shards: switches that stop whole shards.
        categories: switches that stop a category in the shards that they name.
        scopes: scopes that are stopped in every cell.
        cells: target cells that are stopped in every scope.
        everything: whether a switch stops all.
        mistakes: what is wrong with entries that therefore stop nothing.
    """

    shards: tuple[Switch, ...] = ()
    categories: tuple[Switch, ...] = ()
    scopes: frozenset[int] = frozenset()
    cells: frozenset[str] = frozenset()
    everything: bool = False
    mistakes: tuple[str, ...] = ()

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


NO_SWITCHES: Final = Switches()


def current() -> Switches:
    """Return the switches in force, from the runtime options.

    Never raises: of a value with mistakes the good entries hold, and the others are logged.
    """
    raw = [_stored(key) for key in (DISABLED_SHARDS, DISABLED_ORGANIZATIONS, DISABLED_USERS)]
    if not any(raw):
        # As nearly always.
        return NO_SWITCHES
    found = _compile(*(json.dumps(each, sort_keys=True, default=repr) for each in raw))
    for mistake in found.mistakes:
        log_limited(_LOG, logging.ERROR, mistake, "Kill switch without effect: %s", mistake)
    return found


def compile_switches(key: str, value: Any) -> Switches:
    """Return the switches that an option with this value would be."""
    keys = (DISABLED_SHARDS, DISABLED_ORGANIZATIONS, DISABLED_USERS)
    return _compile(*(json.dumps(value if each == key else []) for each in keys))


def _stored(key: str) -> list[Any]:
    try:
        return list(options.get(key))
    except OptionValueError as exc:
        log_limited(_LOG, logging.ERROR, key, "Kill switches without effect: %s", exc)
        return []


def _names(switch: Switch, key: ShardKey) -> bool:
    # Both begin with scope, identifier and cell.
    return all(named in (None, own) for named, own in zip(switch, key, strict=False))


@lru_cache(maxsize=16)
def _compile(shards: str, orgs: str, users: str) -> Switches:
    switches: list[Switch] = []
    mistakes: list[str] = []
    for entry in json.loads(shards):
        try:
            switches.append(read_switch(entry))
        except ValueError as exc:
            mistakes.append(f"in {DISABLED_SHARDS}, {exc}")
    for kind, key, raw in (
        ("organization", DISABLED_ORGANIZATIONS, orgs),
        ("user", DISABLED_USERS, users),
    ):
        for each in json.loads(raw):
            try:
                identifier = read_identifier(each)
            except ValueError as exc:
                mistakes.append(f"in {key}, {exc}")
                continue
            switches += [
                Switch(scope.value, identifier) for scope in all_scopes() if scope.switch == kind
            ]
    whole = tuple(each for each in switches if each.category is None)
    scopes = (each.scope for each in whole if each == Switch(scope=each.scope))
    cells = (each.cell for each in whole if each == Switch(cell=each.cell))
    return Switches(
        shards=whole,
        categories=tuple(each for each in switches if each.category is not None),
        scopes=frozenset(scope for scope in scopes if scope is not None),
        cells=frozenset(cell for cell in cells if cell is not None),
        everything=Switch() in whole,
        mistakes=tuple(mistakes),
    )
