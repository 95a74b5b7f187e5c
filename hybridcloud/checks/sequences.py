"""Checks that the sequences of outbox tables do not cache ids.

With ``CACHE`` above 1, each session reserves ids. A newer message could then
get a lower id than an older one of another session, and the wrong message would
count as the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.checks import CheckMessage, Error
from django.db import connections

from hybridcloud.outbox.store.tables import outbox_models
from silos.mode import SiloMode
from silos.router import silo_aliases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridcloud.outbox.store.tables import OutboxTable

# Found by dependency, not by name: a renamed table keeps its sequence. No table gives no rows.
_SEQUENCES: Final = """
    SELECT d.objid::regclass::text, s.seqcache
    FROM pg_depend AS d JOIN pg_sequence AS s ON s.seqrelid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.refobjid = to_regclass(%s) AND d.deptype IN ('a', 'i') AND s.seqcache > 1
"""


def check_sequences(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """hybridcloud.E046: the sequence of an outbox table has CACHE 1."""
    return [
        Error(
            f"Sequence {sequence} of {outbox._meta.label} in {alias!r} has CACHE {cache}.",
            hint=f"Messages would be handled in the wrong order. Run ALTER SEQUENCE {sequence} "
            f"CACHE 1, and reconnect all sessions.",
            obj=outbox,
            id="hybridcloud.E046",
        )
        for alias in databases or ()
        for outbox in _outboxes_on(alias)
        for sequence, cache in _caching_sequences(alias, outbox)
    ]


def _outboxes_on(alias: str) -> Iterator[type[OutboxTable]]:
    here = silo_aliases().get(alias)
    for mode in (SiloMode.CELL, SiloMode.CONTROL):
        if here is not None and here[0] in (mode, SiloMode.MONOLITH):
            yield from outbox_models(mode)


def _caching_sequences(alias: str, outbox: type[OutboxTable]) -> list[tuple[str, int]]:
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute(_SEQUENCES, [connection.ops.quote_name(outbox._meta.db_table)])
        return [(str(name), int(cache)) for name, cache in cursor.fetchall()]
