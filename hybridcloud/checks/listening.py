"""Checks that notifications reach the sessions that listen for them.

A pooler in transaction mode accepts LISTEN and then forgets it, so that
drainers only poll. A session cannot tell whether it runs through such a pooler,
so the check itself listens and notifies once.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004
from django.db import connections

from hybridcloud.conf import settings
from hybridcloud.outbox.deliver.listener import POLL
from silos.router import silo_aliases

if TYPE_CHECKING:
    from collections.abc import Sequence

_WAIT: Final = 1.0
"""Seconds to wait for the notification, which normally takes less than a millisecond."""


def check_listening(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """hybridcloud.W042: with ``KICK = "notify"``, notifications arrive.

    hybridcloud.E002: ``LISTEN_DATABASE`` is one of ``DATABASES``.
    """
    conf = settings()
    if conf.kick != "notify":
        return []
    if conf.listen_database is not None and conf.listen_database not in connections.settings:
        return [
            Error(
                f"No database {conf.listen_database!r}: HYBRIDCLOUD['LISTEN_DATABASE'] is not one of DATABASES.",
                hint=f"Use one of {', '.join(sorted(connections.settings))}, or remove the setting.",
                id="hybridcloud.E002",
            )
        ]
    found: list[CheckMessage] = []
    for alias in databases or ():
        direct = conf.listen_database or alias
        if alias in silo_aliases() and not _hears(direct, alias):
            found.append(
                Warning(
                    f"NOTIFY on {alias!r} is not heard by LISTEN on {direct!r}: a pooler runs in "
                    f"transaction mode, or it is another database.",
                    hint=f"Drainers find messages only by polling, every {POLL:.0f} s. Set "
                    f"HYBRIDCLOUD['LISTEN_DATABASE'] to an alias that connects to the database of {alias!r} directly.",
                    id="hybridcloud.W042",
                )
            )
    return found


def _hears(listening: str, notifying: str) -> bool:
    """Return whether a session on one alias hears NOTIFY on the other one."""
    channel = f"hybridcloud_check_{secrets.token_hex(8)}"
    with (
        closing(connections[listening].copy()) as listener,
        closing(connections[notifying].copy()) as notifier,
    ):
        with listener.cursor() as cursor:
            cursor.execute(f"LISTEN {channel}")
        with notifier.cursor() as cursor:
            cursor.execute(f"NOTIFY {channel}")
        return bool(list(listener.connection.notifies(timeout=_WAIT, stop_after=1)))
