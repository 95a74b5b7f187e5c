"""Checks that notifications arrive: without it drainers behind a pooler would poll, and nobody would know.

A pooler that lends a session for one transaction takes LISTEN and forgets it.
What it is cannot be asked, so the check listens and notifies once itself.
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
"""Seconds after which a notification, which takes less than a millisecond, is taken for lost."""


def check_listening(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """hybridcloud.W042: where kicks are notifications, a session that listens hears them."""
    conf = settings()
    if conf.kick != "notify":
        return []
    if conf.listen_database is not None and conf.listen_database not in connections.settings:
        return [
            Error(
                f"No database {conf.listen_database!r}: HYBRIDCLOUD['LISTEN_DATABASE'] names none of DATABASES.",
                hint=f"Name one of {', '.join(sorted(connections.settings))}, or leave it out.",
                id="hybridcloud.E002",
            )
        ]
    found: list[CheckMessage] = []
    for alias in databases or ():
        direct = conf.listen_database or alias
        if alias in silo_aliases() and not _hears(direct, alias):
            found.append(
                Warning(
                    f"NOTIFY on {alias!r} is not heard by LISTEN on {direct!r}: a pooler lends its "
                    f"sessions for single transactions, or it is another database.",
                    hint=f"Drainers find messages by polling alone, every {POLL:.0f} s. Set "
                    f"HYBRIDCLOUD['LISTEN_DATABASE'] to an alias that reaches the database of {alias!r} directly.",
                    id="hybridcloud.W042",
                )
            )
    return found


def _hears(listening: str, notifying: str) -> bool:
    """Say whether a new session on one alias hears what a new session on another notifies."""
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
