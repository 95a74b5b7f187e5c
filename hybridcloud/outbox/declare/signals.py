"""The two signals that handlers receive messages by.

Receivers are connected with the category as sender::

    @receiver(process_cell_outbox, sender=Category.AUDIT_LOG_EVENT)
    def record(payload, object_identifier, shard_identifier, **kwargs): ...

Keyword arguments: ``payload`` (JSON or None), ``object_identifier``, ``shard_identifier``,
``shard_scope``, ``date_added``, ``scheduled_for`` (aware datetimes) and ``message_id``; for control
messages also ``cell_name``, the target. A receiver is called one or more times for a message (at
most once in such scopes), with an object's newest payload in scopes that coalesce, and outside any
transaction except in atomic scopes. Any exception but `RetryLater` counts as a failure of the
message.
"""

from __future__ import annotations

from datetime import timedelta
from math import isnan
from typing import Final

from django.dispatch import Signal

from hybridcloud.errors import HybridCloudError

SHORTEST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 30 * 86_400.0
process_cell_outbox = Signal()
process_control_outbox = Signal()


class RetryLater(HybridCloudError):  # noqa: N818 - a request, not an error
    """Raised by a handler that cannot run yet; the message is deferred.

    It does not count as a failure, except in at-most-once scopes.

    Args:
        delay: how long to wait, a timedelta or seconds; taken as at least 0.1 s, so that a handler
            is not called in a loop, and at most 30 days.
        reason: why, for the parked row.
    """

    def __init__(self, delay: timedelta | float = 5.0, reason: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        # Of a NaN, which is below nothing and above nothing, the shortest.
        within = SHORTEST_DELAY if isnan(seconds) else min(seconds, LONGEST_DELAY)
        self.seconds = max(SHORTEST_DELAY, within)
        self.delay = timedelta(seconds=self.seconds)
        self.reason = reason
        super().__init__(reason or f"not yet; again in {self.seconds:g} s")
