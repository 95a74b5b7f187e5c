"""The framework's settings: ``settings.HYBRIDCLOUD`` as a frozen object.

An unknown key is an error, so that a typo does not leave a default in force.
The keys that define the silos (``SILO_MODE``, ``CELLS`` and so on) are read by
``silos``; they are listed here only so that they count as known.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from hybridcloud.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

type FlushMode = Literal["sync", "kick", "cron"]
type KickMode = Literal["celery", "notify"]

_SILO_KEYS = frozenset(
    {"SILO_MODE", "CELL", "CELLS", "CONTROL_ADDRESS", "DATABASES", "CELL_RESOLVER"}
)
_FLUSH_MODES = ("sync", "kick", "cron")
_KICK_MODES = ("celery", "notify")


def _default_outbox_models() -> Mapping[str, Sequence[str]]:
    return {"CELL": ("hybridcloud.CellOutbox",), "CONTROL": ("hybridcloud.ControlOutbox",)}


@dataclass(frozen=True, slots=True)
class Settings:
    """The framework's settings.

    The key in ``HYBRIDCLOUD`` is the field's name in capitals.

    Attributes:
        flush: what happens after the commit of a change: ``sync`` drains in
            the writer's process, ``kick`` wakes a drainer, ``cron`` waits for beat.
        kick: what wakes a drainer: ``celery`` sends a drain task, ``notify`` sends a NOTIFY
            to ``manage.py hybridcloud_drainer``.
        flush_wait: seconds that a sync flush waits for another drainer.
        concurrency: the number of drain tasks that a scheduler tick fans out.
        lease: seconds after which a drainer loses a shard if it does not renew its lease.
        handler_timeout: seconds after which a running handler loses its shard.
        listen_database: alias of a direct connection for LISTEN; None: the silo's own alias.
        rpc_secrets: shared secrets, newest first: the first signs, all verify. A
            string, a list of strings, or a callable that returns either.
        rpc_timeout: seconds to connect, and again seconds to wait for the answer.
        rpc_clock_window: seconds by which a request's timestamp may be off.
        rpc_max_bytes: the largest accepted body, in bytes.
        redis_url: the Redis that deduplicates kicks and announces changes of options.
        outbox_models: the outbox tables of each silo mode, as ``app.Model`` labels.
        options: pinned runtime options, for tests and read-only deployments.
        outbox_backfills_per_minute: the most messages that backfills write in a minute.
        cascade_delete: path of ``function(model, ids) -> bool`` that deletes rows whose target
            in another silo was deleted, and returns whether it is done; None: the model's own
            delete.
        causation_limit: hops after which a causal chain is dead-lettered (rule 9).
    """

    flush: FlushMode = "sync"
    kick: KickMode = "celery"
    flush_wait: float = 1.0
    concurrency: int = 5
    lease: float = 15.0
    handler_timeout: float = 600.0
    listen_database: str | None = None
    rpc_secrets: str | Sequence[str] | Callable[[], str | Sequence[str]] = ()
    rpc_timeout: float = 5.0
    rpc_clock_window: float = 60.0
    rpc_max_bytes: int = 4 * 1024 * 1024
    redis_url: str | None = None
    outbox_models: Mapping[str, Sequence[str]] = field(default_factory=_default_outbox_models)
    options: Mapping[str, Any] = field(default_factory=dict)
    outbox_backfills_per_minute: int = 10_000
    causation_limit: int = 16
    cascade_delete: str | None = None

    def secrets(self) -> tuple[str, ...]:
        """Return the RPC secrets, the signing one first; empty if none is set."""
        value = self.rpc_secrets() if callable(self.rpc_secrets) else self.rpc_secrets
        return (value,) if isinstance(value, str) else tuple(value)

    @property
    def renew_every(self) -> float:
        """Seconds between renewals of the lease while a handler runs."""
        return self.lease / 5

    @property
    def renew_after(self) -> float:
        """Age in seconds at which a drainer renews a lease between handlers."""
        return self.lease / 3


def settings() -> Settings:
    """Return the settings in force.

    Raises:
        ConfigurationError: a key is unknown, or a value has the wrong type or range.
    """
    return _read()


@cache
def _read() -> Settings:
    raw = getattr(django_settings, "HYBRIDCLOUD", {})
    if not isinstance(raw, dict):
        raise ConfigurationError(
            f"Wrong type of settings.HYBRIDCLOUD: {type(raw).__name__}. Make it a dict."
        )
    known = {f.name.upper() for f in fields(Settings)}
    for key in raw:
        if key not in known and key not in _SILO_KEYS:
            near = difflib.get_close_matches(str(key), known | _SILO_KEYS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " Remove it."
            raise ConfigurationError(f"Unknown key {key!r} in settings.HYBRIDCLOUD.{hint}")
    result = Settings(**{key.lower(): value for key, value in raw.items() if key in known})
    _validate(result)
    return result


def _validate(conf: Settings) -> None:
    for key, mode, modes in (
        ("FLUSH", conf.flush, _FLUSH_MODES),
        ("KICK", conf.kick, _KICK_MODES),
    ):
        if mode not in modes:
            near = difflib.get_close_matches(str(mode), modes, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Use one of {', '.join(modes)}."
            raise ConfigurationError(
                f"Unknown value {mode!r} of HYBRIDCLOUD[{key!r}] in the settings.{hint}"
            )
    for name, least in (
        ("flush_wait", 0),
        ("concurrency", 1),
        ("lease", 0.1),
        ("handler_timeout", 0.1),
        ("rpc_timeout", 0.01),
        ("rpc_clock_window", 1),
        ("rpc_max_bytes", 1),
        ("causation_limit", 1),
        ("outbox_backfills_per_minute", 1),
    ):
        value = getattr(conf, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
            raise ConfigurationError(
                f"Wrong value {value!r} of HYBRIDCLOUD[{name.upper()!r}] in the settings. "
                f"Set it to a number of at least {least}."
            )
    unknown = set(conf.outbox_models) - {"CELL", "CONTROL"}
    if unknown:
        raise ConfigurationError(
            f"Unknown silo mode {min(unknown)!r} in HYBRIDCLOUD['OUTBOX_MODELS'] in the "
            f"settings. Use CELL and CONTROL."
        )


def _reset(*, setting: str, **_: object) -> None:
    if setting == "HYBRIDCLOUD":
        _read.cache_clear()


setting_changed.connect(_reset, dispatch_uid="hybridcloud.conf")
