"""Reads what the options of kill switches hold.

A mistake is an error where it is written. What is stored all the same stops nothing by being
wrong, and never more than it names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hybridcloud.outbox.declare.category import all_categories
from hybridcloud.outbox.declare.scope import all_scopes
from silos.cells import all_cells
from silos.errors import near_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.declare.category import OutboxCategory
    from hybridcloud.outbox.declare.scope import OutboxScope

_MEMBERS: Final = ("scope", "identifier", "cell", "category")
_ALL: Final = {"all": True}
_LARGEST: Final = 2**63 - 1


class Switch(NamedTuple):
    """One switch; None means any."""

    scope: int | None = None
    identifier: int | None = None
    cell: str | None = None
    category: int | None = None


def read_switch(entry: object) -> Switch:
    """Return the switch of an entry of ``disabled_shards``.

    Raises:
        ValueError: it is none; the message says what is wrong and what would be right.
    """
    if not isinstance(entry, dict):
        raise ValueError(f'{entry!r} is not an object, such as {{"scope": "ORDERS"}}')  # noqa: TRY004 - one kind
    if entry == _ALL and entry["all"] is True:
        return Switch()
    if not entry or "all" in entry:
        raise ValueError(f'{_shown(entry)} is unclear: what stops everything is {{"all": true}}')
    for name, value in entry.items():
        if name not in _MEMBERS:
            raise ValueError(
                f"{_shown(entry)} has an unknown {name!r}. {near_matches(str(name), _MEMBERS)}"
            )
        if value is None or value in ("", "*"):
            raise ValueError(f"{_shown(entry)} has an empty {name!r}: leave out what may be any")
    return Switch(
        scope=_number("scope", entry.get("scope"), all_scopes()),
        identifier=_identifier(entry.get("identifier")),
        cell=_cell(entry.get("cell")),
        category=_number("category", entry.get("category"), all_categories()),
    )


def read_identifier(value: object) -> int:
    """Return an identifier of an organization or user.

    Raises:
        ValueError: it is not an integer.
    """
    found = _identifier(value)
    if found is None:
        raise ValueError("null is not an identifier")
    return found


def check_switches(value: Sequence[object]) -> None:
    """Refuse a value of ``disabled_shards`` with a mistake in it."""
    for entry in value:
        read_switch(entry)


def check_identifiers(value: Sequence[object]) -> None:
    """Refuse a list of identifiers with a mistake in it."""
    for each in value:
        read_identifier(each)


def _identifier(value: object) -> int | None:
    if value is None:
        return None
    # A bool is an int for Python, and another organization for whoever reads the option.
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        raise ValueError(f"identifier {_shown(value)} is not an integer, such as 7")
    return value


def _cell(value: object) -> str | None:
    names = [cell.name for cell in all_cells()]
    if value is None or value in names:
        return None if value is None else str(value)
    raise ValueError(f"cell {_shown(value)} is unknown. {near_matches(str(value), names)}")


def _number(
    what: str, value: object, members: Sequence[OutboxScope] | Sequence[OutboxCategory]
) -> int | None:
    if value is None:
        return None
    for member in members:
        if value == member.name or (value == member.value and type(value) is int):
            return member.value
    names = [member.name for member in members]
    raise ValueError(f"{what} {_shown(value)} is unknown. {near_matches(str(value), names)}")


def _shown(value: Any) -> str:
    return json.dumps(value, default=repr)[:200]
