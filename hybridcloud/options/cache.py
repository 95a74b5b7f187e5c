"""A process's cache of its silos' options.

The whole table is read at once and cached for 5 seconds. If Redis is set up,
it holds a token that every change replaces. Each process checks the token once
a second, and so finds a change sooner. The process goes on without the database
and without Redis: the last known values remain in force.
"""

from __future__ import annotations

import logging
import uuid
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from django.apps import apps
from django.db import Error, connections, transaction
from django.db.models.signals import post_migrate

from hybridcloud.redis import shared_redis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

_LIFE: Final = 5.0
_GLANCE: Final = 1.0
_TOKEN_KEY: Final = "hybridcloud:options:token"  # noqa: S105 - a name, not a secret
_LOG = logging.getLogger("hybridcloud.options")


class Snapshot:
    """The options of a silo at one moment.

    Attributes:
        rows: the stored values, by key.
        read: the values that `values` has looked up: checked, or the defaults.
        due: when to look for changes again, by the monotonic clock.
        token: the token of the last change, or None.
        loaded_at: when the rows were read, by the monotonic clock.
        failing: whether the rows could not be read, and are the last known ones.
    """

    __slots__ = ("due", "failing", "loaded_at", "read", "rows", "token")

    def __init__(self, rows: Mapping[str, Any], *, token: str | None, loaded_at: float) -> None:
        self.rows = rows
        self.read: dict[str, Any] = {}
        self.token = token
        self.loaded_at = loaded_at
        self.due = loaded_at + (_LIFE if token is None else _GLANCE)
        self.failing = False


class _Announcement:
    """Announces a change after its commit; Django drops it on rollback."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __call__(self) -> None:
        forget(self._alias)
        _writing.discard(connections[self._alias])
        _replace_token()


_snapshots: dict[str, Snapshot] = {}
_writing: WeakSet[BaseDatabaseWrapper] = WeakSet()
_changes = 0


def current(alias: str) -> Snapshot:
    """Return the options of an alias, including this thread's own changes.

    Never raises because of the database.
    """
    found = _snapshots.get(alias)
    if _writing and _has_own_changes(alias):
        return _uncached(alias, found)
    if found is not None and monotonic() < found.due:
        return found
    return _refreshed(alias, found)


def forget(alias: str) -> None:
    """Make the next access read the table again.

    The cached values remain available in case the database cannot be read.
    """
    global _changes  # noqa: PLW0603 - one cache per process
    _changes += 1
    found = _snapshots.get(alias)
    if found is not None:
        found.loaded_at = found.due = float("-inf")


def announce_after_commit(alias: str) -> None:
    """Make all processes read the table again after the open transaction."""
    _writing.add(connections[alias])
    transaction.on_commit(_Announcement(alias), using=alias, robust=True)


def _refreshed(alias: str, old: Snapshot | None) -> Snapshot:
    now = monotonic()
    if old is not None:
        # Instead of a lock: other threads use the old values, and one retries if this thread dies.
        old.due = now + _GLANCE
    # Read the token before the rows: a change in between then shows as a new token next time.
    token = _token()
    if old is not None and token is not None and token == old.token:
        age_left = old.loaded_at + _LIFE - now
        if age_left > 0:
            old.due = now + min(_GLANCE, age_left)
            return old
    changes = _changes
    made = _loaded(alias, old, token)
    if changes != _changes:
        made.due = float("-inf")
    _snapshots[alias] = made
    return made


def _loaded(alias: str, old: Snapshot | None, token: str | None) -> Snapshot:
    was_failing = old is not None and old.failing
    try:
        made = Snapshot(_rows(alias), token=token, loaded_at=monotonic())
    except Error as exc:
        if not was_failing:
            _LOG.warning(
                "Options of database %r cannot be read, using the last known values: %s", alias, exc
            )
        made = Snapshot({} if old is None else old.rows, token=None, loaded_at=monotonic())
        made.failing = True
        return made
    if was_failing:
        _LOG.info("Options of database %r can be read again", alias)
    return made


def _uncached(alias: str, known: Snapshot | None) -> Snapshot:
    """Return what the open transaction sees, without caching it."""
    return _loaded(alias, known, None)


def _rows(alias: str) -> dict[str, Any]:
    connection = connections[alias]
    query = apps.get_model("hybridcloud", "Option")._base_manager.using(alias)
    if connection.in_atomic_block:
        # The savepoint keeps a failing statement from aborting the caller's transaction.
        with transaction.atomic(using=alias):
            return dict(query.values_list("key", "value"))
    try:
        return dict(query.values_list("key", "value"))
    except Error:
        # Outside requests, Django does not replace a session that the server has ended.
        connection.close_if_unusable_or_obsolete()
        raise


def _has_own_changes(alias: str) -> bool:
    connection = connections[alias]
    if connection not in _writing:
        return False
    if any(isinstance(entry[1], _Announcement) for entry in connection.run_on_commit):
        return True
    _writing.discard(connection)
    return False


def _token() -> str | None:
    """Return the token of the last change; None if Redis is not available."""
    redis = shared_redis()
    return None if redis is None else redis.get(_TOKEN_KEY, missing="none yet")


def _replace_token() -> None:
    redis = shared_redis()
    # Random, not a counter: after a flush of Redis, a counter could repeat an earlier number.
    if redis is not None and redis.put(_TOKEN_KEY, uuid.uuid4().hex) is None:
        _LOG.warning(
            "A changed option could not be announced in Redis, it takes effect within %s s", _LIFE
        )


def _forget_all(**_: object) -> None:
    for alias in list(_snapshots):
        forget(alias)


# After migrate, the table may have been created or, in tests, emptied.
post_migrate.connect(_forget_all, dispatch_uid="hybridcloud.options")
