"""Calls handlers in a row where nothing is out of the ordinary: else each message pays for what happens to few.

The same steps as `Pass` takes, with every question asked as seldom as it can
be: what is parked, failed or switched off, who watches, which policy. What
turns out to be otherwise is left to `Pass`.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from hybridcloud import causation, hooks
from hybridcloud.outbox.declare.scope import Delivery
from hybridcloud.outbox.drain.call import decode, nobody_listens
from hybridcloud.outbox.drain.coalesce import each_group, moment
from hybridcloud.registry import cell_is_broken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridcloud.outbox.drain.coalesce import Group
    from hybridcloud.outbox.drain.shard import Shard
    from hybridcloud.outbox.drain.work import Pass


class Begun(NamedTuple):
    """A shard that was begun in a row, and is to be gone on with more closely.

    Attributes:
        groups: its groups that are not settled.
        goes_on: whether the shard goes on at all.
    """

    groups: Sequence[Group]
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
    with causation.beginning() as begin:
        position, begun = _handle(run, shards, at, begin)
    run.emptied += [shard.key for shard in shards[at:position] if shard.is_whole]
    return position, begun


def _handle(
    run: Pass, shards: Sequence[Shard], at: int, begin: Callable[[causation.First | None], object]
) -> tuple[int, Begun | None]:
    leases, batch, routes, signal = run.leases, run.batch, run.routes, run.signal
    label, now = run.engine.tables.label, monotonic()
    for position in range(at, len(shards)):
        shard = shards[position]
        key, most = shard.key, shard.policy.ack
        if now > run.deadline or _needs_a_closer_look(run, shard):
            return position, None
        batch.begin(now)
        leases.handler_timeout = shard.policy.handler_timeout
        send = signal.send if len(key) < 3 else partial(signal.send, cell_name=key[0])
        newest, larger = groups = shard.groups()
        began = now
        for index, message in enumerate(newest):
            _, message_id, category, each, payload, due, added, headers, age, _ = message
            route = routes.get(category) or run.route(category)
            looks = leases.lost or now - leases.renewed_at > leases.renew_after
            if not route.is_open or headers is not None or (looks and not leases.owns(key, now)):
                return position, Begun(each_group(groups, index), goes_on=True)
            begin((label, message_id, route.name))
            leases.handler_since, date_added = now, moment(added)
            try:
                if not send(
                    route.category,
                    payload=None if payload is None else decode(payload)[0],
                    object_identifier=each,
                    shard_identifier=key[-1],
                    shard_scope=key[-2],
                    date_added=date_added,
                    scheduled_for=date_added if due is None else moment(due),
                    message_id=message_id,
                ):
                    raise nobody_listens()  # noqa: TRY301 - settled like what a handler raises
            except Exception as exc:  # noqa: BLE001 - the edge of the process: whatever a handler raises
                leases.handler_since = None
                begin(None)
                group, *others = each_group(groups, index)
                return position, Begun(others, run.failed(shard, group, exc))
            finally:
                leases.handler_since = None
            if larger and message_id in larger:
                age = batch.supersede(larger[message_id])
            batch.ids.append(message_id)
            batch.ages[category].append(age)
            now = monotonic()
            if len(batch.ids) >= most or now > batch.due:
                begin(None)
                batch.flush()
                now = monotonic()
                batch.begin(now)
                if run.turn_is_over(began, now) and message is not newest[-1]:
                    run.cut(shard)
                    return position, Begun((), goes_on=False)
    return len(shards), None


def _needs_a_closer_look(run: Pass, shard: Shard) -> bool:
    policy, key = shard.policy, shard.key
    return bool(
        shard.touched
        or shard.newer
        or policy.atomic
        or policy.delivery is Delivery.AT_MOST_ONCE
        or run.stopped()
        or (len(key) > 2 and cell_is_broken(key[0]))
    )


def _is_watched(run: Pass) -> bool:
    return bool(
        run.leases.suspect
        or run.in_testcase
        or run.switches.categories
        or hooks.active.before_handler
        or hooks.active.after_handler
    )
