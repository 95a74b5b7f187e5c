"""Calls handlers in a row where nothing is out of the ordinary: else each message pays for what happens to few.

The same steps as `Pass` takes, with every question asked as seldom as it can
be: what is parked, failed or switched off, who watches, which policy. What
turns out to be otherwise is left to `Pass`.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridcloud import causation, hooks
from hybridcloud.outbox.category import Delivery
from hybridcloud.outbox.coalesce import CATEGORY, HEADERS, ID, OBJECT, PAYLOAD, dates_of
from hybridcloud.outbox.handling import Route, decode, nobody_listens
from hybridcloud.registry import cell_is_broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridcloud.outbox.category import Policy
    from hybridcloud.outbox.claimed import Shard
    from hybridcloud.outbox.coalesce import Group
    from hybridcloud.outbox.passes import Pass


_NOWHERE: Final = Route(None, "", is_retired=False, is_open=False)


class Begun(NamedTuple):
    """A shard that was begun in a row, and is to be gone on with more closely.

    Attributes:
        groups: its groups.
        at: the index of the first that is not settled.
        goes_on: whether the shard goes on at all.
    """

    groups: Sequence[Group]
    at: int
    goes_on: bool


def handle_in_a_row(run: Pass, shards: Sequence[Shard], at: int) -> tuple[int, Begun | None]:
    """Handle plain shards, one after another, up to one that needs a closer look.

    Args:
        run: the pass.
        shards: all its shards.
        at: the index of the first one to handle.

    Returns:
        The index of the first shard that is not done, and how far it was begun.
    """
    if _is_watched(run):
        return at, None
    for position in range(at, len(shards)):
        shard = shards[position]
        if shard.touched or shard.newer or not _is_plain(shard.policy) or run.stopped():
            return position, None
        if len(shard.key) > 2 and cell_is_broken(shard.key[0]):
            return position, None
        begun = _handle_groups(run, shard)
        if begun is not None:
            return position, begun
        run.went_through(shard)
    return len(shards), None


def _handle_groups(run: Pass, shard: Shard) -> Begun | None:
    """Handle a plain shard's groups; say how far where one needs a closer look."""
    leases, batch, key = run.leases, run.batch, shard.key
    send, label, most = run.signal.send, run.engine.tables.label, shard.policy.ack
    target = {"cell_name": key[0]} if len(key) > 2 else {}
    category, route, now = None, _NOWHERE, monotonic()
    leases.handler_limit = shard.handler_limit
    groups = shard.groups()
    error: Exception | None
    for index, group in enumerate(groups):
        message, ids, age = group
        if message[CATEGORY] != category:
            category = message[CATEGORY]
            route = run.route(category)
        if not route.is_open or message[HEADERS] is not None:
            return Begun(groups, index, goes_on=True)
        looks = leases.lost or now - leases.renewed_at > leases.renew_after
        if looks and not leases.owns(key, now):
            return Begun(groups, index, goes_on=True)
        payload, (added, due) = message[PAYLOAD], dates_of(message)
        leases.handler_since = now
        if batch.since is None:
            batch.since = now
        try:
            with causation.inside(None, (label, message[ID], route.name)):
                heard = send(
                    route.category,
                    payload=None if payload is None else decode(payload)[0],
                    object_identifier=message[OBJECT],
                    shard_identifier=key[-1],
                    shard_scope=key[-2],
                    date_added=added,
                    scheduled_for=due,
                    message_id=message[ID],
                    **target,
                )
            error = None if heard else nobody_listens()
        except Exception as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
            error = exc
        finally:
            leases.handler_since = None
        if error is not None:
            return Begun(groups, index + 1, run.failed(shard, group, error))
        now = monotonic()
        batch.take(category, ids, age, calls=1)
        if batch.is_full(most, now):
            batch.flush()
            now = monotonic()
    return None


def _is_plain(policy: Policy) -> bool:
    return not policy.atomic and policy.delivery is not Delivery.AT_MOST_ONCE


def _is_watched(run: Pass) -> bool:
    return bool(
        run.leases.suspect
        or run.in_testcase
        or run.switches.categories
        or hooks.active.before_handler
        or hooks.active.after_handler
    )
