"""Reports failures to sentry-sdk.

Nothing is sent unless the project calls `sentry_sdk.init`. Payloads of messages
are not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcloud.hooks import Hooks
from hybridcloud.outbox.declare.category import category_name
from hybridcloud.outbox.declare.scope import scope_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridcloud.hooks import Captured, Failed


class SentryListener(Hooks):
    """Captures exceptions of handlers, and those that were swallowed."""

    def failed(self, fact: Failed) -> None:
        """Capture the first failure, the last, and those that double the attempts.

        A handler that is broken for a day fails hourly in thousands of shards;
        the failure rows record every one, so the error tracker need not.
        """
        if not (_is_power_of_two(fact.attempts) or fact.dead):
            return
        category, scope = category_name(fact.category), scope_name(fact.scope)
        *cell, _, identifier = fact.shard
        tags = {
            "outbox.category": category,
            "outbox.scope": scope,
            "outbox.shard": ":".join(str(part) for part in (*cell, identifier)),
            "outbox.object": str(fact.object_identifier),
            "synchronous": "1" if fact.synchronous else "0",
        }
        kind = "worker lost" if fact.error is None else type(fact.error).__qualname__
        details = {
            "table": fact.outbox,
            "message": fact.message_id,
            "attempts": fact.attempts,
            "dead": fact.dead,
        }
        _capture(
            fact.error or f"Worker lost while it handled {category}",
            tags,
            details,
            # One issue per broken handler, not one per object.
            fingerprint=["hybridcloud.outbox", category, kind],
        )

    def captured(self, fact: Captured) -> None:
        """Capture an exception that was swallowed."""
        _capture(fact.error, {"hybridcloud.step": fact.where, **fact.tags}, {})


def _capture(
    what: BaseException | str,
    tags: Mapping[str, str],
    details: Mapping[str, object],
    *,
    fingerprint: list[str] | None = None,
) -> None:
    import sentry_sdk  # noqa: PLC0415 - imported at first use: it costs every process its start

    with sentry_sdk.new_scope() as scope:
        for name, value in tags.items():
            scope.set_tag(name, value)
        if details:
            scope.set_context("outbox", dict(details))
        if fingerprint is not None:
            scope.fingerprint = fingerprint
        if isinstance(what, BaseException):
            sentry_sdk.capture_exception(what)
        else:
            sentry_sdk.capture_message(what, level="error")


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
