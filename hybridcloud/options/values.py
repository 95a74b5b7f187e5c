"""Reads and sets runtime options.

A value is pinned by ``HYBRIDCLOUD["OPTIONS"]``, or else comes from the database
of the current silo, or else is the registered default. Each silo has its own
values: setting an option in control does not affect the cells.
"""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass, replace
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
    """The current state of an option, for display.

    Attributes:
        key: its name.
        value: the value in force.
        source: where the value comes from.
        type: the name of its type.
        default: the value if none is set.
        doc: what it is for.
        by: who set it in the database.
        reason: why it was set.
        updated_at: when it was set.
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
    """A change of an option; a value of None means that it was unset."""

    key: str
    value: Any
    by: str
    reason: str
    at: datetime


def get(key: str) -> Any:
    """Return the value of an option in the current silo.

    The value is at most a few seconds old. Never raises because of the database: if
    it cannot be read, the last known value is returned, or else the default. A
    transaction that set options sees the new values.

    Raises:
        UnknownOptionError: the key is not registered.
        OptionValueError: the settings pin it to a value of the wrong type.
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
    """Set an option in the current silo and record who did it, when and why.

    Running processes follow once the open transaction has committed: within
    about a second if Redis is set up, or else within 5.

    Raises:
        UnknownOptionError: the key is not registered.
        OptionValueError: the value has the wrong type, or the settings pin the option.
    """
    require_accepted(find_definition(key), value, where="in options.set()")
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
    """Unset an option in the current silo, so that its default applies.

    Does nothing if the option is not set.

    Raises:
        UnknownOptionError: the key is not registered.
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
    """Return the values in force of all options, by key.

    Options of a pattern are included if they are set or pinned.
    """
    rows = cache.current(current_alias()).rows
    return {key: get(key) for key in _known_keys(rows)}


def states() -> list[OptionState]:
    """Return all options as they are now, sorted by key.

    Raises:
        django.db.Error: the database cannot be read; unlike `get`, this reads it every time.
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
    """Return the last changes in the current silo, newest first.

    Args:
        key: the option; None: all options.
        limit: the largest number of changes.

    Raises:
        UnknownOptionError: the key is not registered.
    """
    rows = apps.get_model("hybridcloud", "OptionHistory")._base_manager.using(current_alias())
    if key is not None:
        find_definition(key)
        rows = rows.filter(key=key)
    return [
        OptionChange(key=row.key, value=row.value, by=row.by, reason=row.reason, at=row.at)
        for row in rows.order_by("-id")[:limit]
    ]


def _pinned(key: str, value: Any) -> Any:
    # By its type alone: a value with a mistake is refused by checks, at start, and must not stop
    # what runs.
    require_accepted(replace(find_definition(key), validate=None), value, where=_IN_SETTINGS)
    return _own(value)


def _own(value: Any) -> Any:
    """Return a copy that the caller may change."""
    if type(value) not in _MUTABLE:
        return value
    # The switches are lists that are almost always empty; a deep copy would cost microseconds.
    return deepcopy(value) if value else type(value)()


def _checked(key: str, rows: Any) -> Any:
    definition = find_definition(key)
    if key not in rows:
        return definition.fresh_default()
    value = rows[key]
    if definition.accepts(value):
        return float(value) if definition.type is float else value
    _LOG.warning(
        "Stored value %r of option %r is not of type %s, using its default",
        value,
        key,
        definition.type.__name__,
    )
    return definition.fresh_default()


def _refuse_pinned(key: str) -> None:
    if key in settings().options:
        raise OptionValueError(
            f"Pinned option {key!r}: its value is set {_IN_SETTINGS}, so it cannot be set in the "
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
            # A key of another release's code, which this process cannot look up.
            continue
    return sorted(keys)


def _stored(alias: str) -> Any:
    return apps.get_model("hybridcloud", "Option")._base_manager.using(alias).all()
