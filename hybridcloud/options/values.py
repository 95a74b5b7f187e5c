"""Reads and sets runtime options; without it callers would have to know where a value comes from.

A value comes from ``HYBRIDCLOUD["OPTIONS"]``, which pins it, else from the
database of the current silo, else it is the registered default. Each silo has
its own: setting an option in control does not reach the cells.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from django.apps import apps
from django.db import transaction

from hybridcloud.conf import settings
from hybridcloud.errors import OptionValueError, UnknownOptionError
from hybridcloud.options import cache
from hybridcloud.options.definition import all_definitions, find_definition, require_accepted
from silos.router import current_alias

if TYPE_CHECKING:
    from datetime import datetime

type Source = Literal["settings", "database", "default"]

_MUTABLE: Final = (list, dict)
_IN_SETTINGS: Final = "in HYBRIDCLOUD['OPTIONS']"
_LOG = logging.getLogger("hybridcloud.options")


@dataclass(frozen=True, slots=True)
class OptionState:
    """An option as it is now, for people and machines that look.

    Attributes:
        key: its name.
        value: the value in force.
        source: where the value comes from.
        type: the name of its type.
        default: what it is where nothing is set.
        doc: what it is for.
        by: who set it in the database.
        reason: why.
        updated_at: when.
    """

    key: str
    value: Any
    source: Source
    type: str
    default: Any
    doc: str
    by: str = ""
    reason: str = ""
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OptionChange:
    """A change of an option; a value of None says that it was unset."""

    key: str
    value: Any
    by: str
    reason: str
    at: datetime


def get(key: str) -> Any:
    """Return the value of an option in the current silo; it is at most seconds old.

    Never raises because of the database: the last known value holds, else the
    default. Inside a transaction that set options, the new values are seen.

    Raises:
        UnknownOptionError: nobody registered the key.
        OptionValueError: the settings pin it to a value of a wrong type.
    """
    pinned = settings().options
    if key in pinned:
        return _pinned(key, pinned[key])
    known = cache.current(current_alias())
    try:
        value = known.read[key]
    except KeyError:
        value = known.read[key] = _checked(key, known.rows)
    return _own(value)


def set(key: str, value: Any, *, by: str = "", reason: str = "") -> None:  # noqa: A001 - the reference's name
    """Set an option in the current silo, and keep who did it, when and why.

    Running processes follow once the open transaction has committed: within a
    second or so where there is a Redis, else within 5.

    Raises:
        UnknownOptionError: nobody registered the key.
        OptionValueError: the value has a wrong type, or the settings pin the option.
    """
    require_accepted(find_definition(key), value, where="was to be set")
    _refuse_pinned(key)
    model, alias = apps.get_model("hybridcloud", "Option"), current_alias()
    with transaction.atomic(using=alias):
        model._base_manager.using(alias).bulk_create(
            [model(key=key, value=value, by=by, reason=reason)],
            update_conflicts=True,
            unique_fields=["key"],
            update_fields=["value", "by", "reason", "updated_at"],
        )
        _record(alias, key=key, value=value, by=by, reason=reason)


def delete(key: str, *, by: str = "", reason: str = "") -> None:
    """Unset an option in the current silo, which gives it its default; nothing set, nothing done.

    Raises:
        UnknownOptionError: nobody registered the key.
        OptionValueError: the settings pin the option.
    """
    find_definition(key)
    _refuse_pinned(key)
    model, alias = apps.get_model("hybridcloud", "Option"), current_alias()
    with transaction.atomic(using=alias):
        count, _ = model._base_manager.using(alias).filter(key=key).delete()
        if count:
            _record(alias, key=key, value=None, by=by, reason=reason)


def all() -> dict[str, Any]:  # noqa: A001 - the reference's name
    """Return the values in force of all options, those of patterns where they are set or pinned."""
    rows = cache.current(current_alias()).rows
    return {key: get(key) for key in _known_keys(rows)}


def states() -> list[OptionState]:
    """Return all options as they are in the current silo's database now, by key.

    Raises:
        django.db.Error: the database does not answer; unlike `get`, this asks it.
    """
    alias = current_alias()
    rows = {row.key: row for row in _stored(alias)}
    pinned = settings().options
    found = []
    for key in _known_keys({key: row.value for key, row in rows.items()}):
        definition, row = find_definition(key), rows.get(key)
        found.append(
            OptionState(
                key=key,
                value=_pinned(key, pinned[key])
                if key in pinned
                else _checked(key, {} if row is None else {key: row.value}),
                source="settings" if key in pinned else "default" if row is None else "database",
                type=definition.type.__name__,
                default=definition.fresh_default(),
                doc=definition.doc,
                by=row.by if row else "",
                reason=row.reason if row else "",
                updated_at=row.updated_at if row else None,
            )
        )
    return found


def history(key: str | None = None, *, limit: int = 100) -> list[OptionChange]:
    """Return the last changes in the current silo, of one option or all, the newest first."""
    rows = apps.get_model("hybridcloud", "OptionHistory")._base_manager.using(current_alias())
    if key is not None:
        find_definition(key)
        rows = rows.filter(key=key)
    return [
        OptionChange(key=row.key, value=row.value, by=row.by, reason=row.reason, at=row.at)
        for row in rows.order_by("-id")[:limit]
    ]


def _pinned(key: str, value: Any) -> Any:
    require_accepted(find_definition(key), value, where=_IN_SETTINGS)
    return _own(value)


def _own(value: Any) -> Any:
    """Return a value that the caller may change without changing what others get."""
    if type(value) not in _MUTABLE:
        return value
    # The switches are lists that are empty nearly always; a deep copy costs microseconds.
    return deepcopy(value) if value else type(value)()


def _checked(key: str, rows: Any) -> Any:
    definition = find_definition(key)
    if key not in rows:
        return definition.fresh_default()
    value = rows[key]
    if definition.accepts(value):
        return float(value) if definition.type is float else value
    _LOG.warning(
        "Stored value %r of option %r is no %s, its default holds",
        value,
        key,
        definition.type.__name__,
    )
    return definition.fresh_default()


def _refuse_pinned(key: str) -> None:
    if key in settings().options:
        raise OptionValueError(
            f"Pinned option {key!r}: {_IN_SETTINGS} decides it, so nothing can be set in the "
            f"database. Take it out of the settings first."
        )


def _record(alias: str, *, key: str, value: Any, by: str, reason: str) -> None:
    history_model = apps.get_model("hybridcloud", "OptionHistory")
    history_model._base_manager.using(alias).create(key=key, value=value, by=by, reason=reason)
    cache.announce_after_commit(alias)


def _known_keys(rows: Any) -> list[str]:
    keys = {definition.key for definition in all_definitions()}
    for key in (*rows, *settings().options):
        try:
            keys.add(find_definition(key).key)
        except UnknownOptionError:
            # A key of other code than the running: no value that anybody here could ask for.
            continue
    return sorted(keys)


def _stored(alias: str) -> Any:
    return apps.get_model("hybridcloud", "Option")._base_manager.using(alias).all()
