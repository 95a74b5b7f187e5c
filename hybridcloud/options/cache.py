"""A process's copy of its silo's options: without it the engine's every pass would ask the database for its switches.

The whole table is read at once and kept for 5 seconds. Where there is a Redis,
it holds a token that every change replaces; looking at that once a second makes
a change known sooner. Neither the database nor Redis is needed to go on: what
was last known holds.
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
from redis import RedisError

from hybridcloud.redis import redis_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

_LIFE: Final = 5.0
_GLANCE: Final = 1.0
_REDIS_REST: Final = 30.0
_TOKEN_KEY: Final = "hybridcloud:options:token"  # noqa: S105 - a name, no secret
_LOG = logging.getLogger("hybridcloud.options")


class Snapshot:
    """The options of a silo at a moment.

    Attributes:
        rows: the stored values by key.
        read: values that were asked for, checked and with defaults; filled by `values`.
        due: when to look again, by the process's monotonic clock.
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
    """Makes a change known once it is committed; Django drops it when the change is rolled back."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __call__(self) -> None:
        forget(self._alias)
        _writing.discard(connections[self._alias])
        _replace_token()


_snapshots: dict[str, Snapshot] = {}
_writing: WeakSet[BaseDatabaseWrapper] = WeakSet()
_changes = 0
_redis_rests_until = 0.0


def current(alias: str) -> Snapshot:
    """Return the options of an alias as this thread may see them; never raises for a database."""
    found = _snapshots.get(alias)
    if _writing and _has_own_changes(alias):
        return _uncached(alias, found)
    if found is not None and monotonic() < found.due:
        return found
    return _refreshed(alias, found)


def forget(alias: str) -> None:
    """Let the next look read anew; what is known stays as what was last known."""
    global _changes  # noqa: PLW0603 - one cache per process
    _changes += 1
    found = _snapshots.get(alias)
    if found is not None:
        found.loaded_at = found.due = float("-inf")


def announce_after_commit(alias: str) -> None:
    """Let this and the other processes read anew once the open transaction has committed."""
    _writing.add(connections[alias])
    transaction.on_commit(_Announcement(alias), using=alias, robust=True)


def _refreshed(alias: str, old: Snapshot | None) -> Snapshot:
    now = monotonic()
    if old is not None:
        # No lock: others go on with the old values, and take over where this thread is lost.
        old.due = now + _GLANCE
    # Before the rows: a change between the two then shows as another token at the next look.
    token = _token(now)
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
                "Options of database %r can't be read, the last known values hold: %s", alias, exc
            )
        made = Snapshot({} if old is None else old.rows, token=None, loaded_at=monotonic())
        made.failing = True
        return made
    if was_failing:
        _LOG.info("Options of database %r can be read again", alias)
    return made


def _uncached(alias: str, known: Snapshot | None) -> Snapshot:
    """Return what the open transaction sees, for it alone."""
    return _loaded(alias, known, None)


def _rows(alias: str) -> dict[str, Any]:
    connection = connections[alias]
    query = apps.get_model("hybridcloud", "Option")._base_manager.using(alias)
    if connection.in_atomic_block:
        # A statement that fails would poison the caller's transaction; the savepoint takes it.
        with transaction.atomic(using=alias):
            return dict(query.values_list("key", "value"))
    try:
        return dict(query.values_list("key", "value"))
    except Error:
        # Else a session that the server ended would fail for ever outside of requests.
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


def _token(now: float) -> str | None:
    """Return the token of the last change; None where there is no Redis, or no answer."""
    global _redis_rests_until  # noqa: PLW0603 - one client per process
    client = redis_client()
    if client is None or now < _redis_rests_until:
        return None
    try:
        return str(client.get(_TOKEN_KEY))
    except RedisError as exc:
        # A Redis that hangs must not cost every look its timeout: the 5 seconds do without it.
        _redis_rests_until = now + _REDIS_REST
        _LOG.warning("Redis does not tell of changed options, the database is asked: %s", exc)
        return None


def _replace_token() -> None:
    client = redis_client()
    if client is None:
        return
    try:
        # A random text, not a count: a flushed Redis could count up to a number seen before.
        client.set(_TOKEN_KEY, uuid.uuid4().hex)
    except RedisError as exc:
        _LOG.warning("Redis was not told of a changed option, it takes %s s: %s", _LIFE, exc)


def _forget_all(**_: object) -> None:
    for alias in list(_snapshots):
        forget(alias)


# The table may be new, or, in tests, emptied.
post_migrate.connect(_forget_all, dispatch_uid="hybridcloud.options")
