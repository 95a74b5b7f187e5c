"""Whatever claims asks the same question: is this shard switched off? (rule 5)

The kinds of claims: due, known (ahead, behind), suspect, crashed, a direct drain, the reference's
own steps, a flush. The kinds of switches: every combination of scope, identifier and cell, all of
it, and the two lists of organizations and users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from hybridcloud.outbox import ControlOutbox, outbox_context
from hybridcloud.outbox.drain import ahead, due
from hybridcloud.outbox.drain.ahead import ahead_of
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import ControlFailure, ControlLease, ControlParked
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from . import test_targets as targets
from .engine import Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.rule(5), pytest.mark.usefixtures("committed")]

FORMS: dict[str, list[dict[str, Any]]] = {
    "scope": [{"scope": "PLAIN"}],
    "identifier": [{"identifier": 1}],
    "cell": [{"cell": "us"}],
    "scope and identifier": [{"scope": "PLAIN", "identifier": 1}],
    "scope and cell": [{"scope": "PLAIN", "cell": "us"}],
    "identifier and cell": [{"identifier": 1, "cell": "us"}],
    "scope, identifier and cell": [{"scope": "PLAIN", "identifier": 1, "cell": "us"}],
    "another one first": [{"scope": "ONCE"}, {"scope": "PLAIN", "cell": "us"}],
}
KEY = ShardKey(int(Lane.PLAIN), 1, "us")
OTHER = ShardKey(int(Lane.PLAIN), 2, "eu")


def _engine() -> Engine:
    return Engine(ControlOutbox, targets.CONTROL)


def _clear() -> None:
    for model in (ControlOutbox, ControlLease, ControlFailure, ControlParked):
        model.objects.using(targets.CONTROL).all().delete()
    for forget in (ahead.forget, due.forget):
        forget()


def _lost(key: ShardKey) -> None:
    """Leave the lease of a drainer that vanished."""
    ControlLease.objects.using(targets.CONTROL).create(
        cell_name=key.cell,
        shard_scope=key.scope,
        shard_identifier=key.identifier,
        owner="lost",
        token=5,
        until="2020-01-01T00:00:00Z",
    )


def _crashed(key: ShardKey) -> None:
    """Leave a crash on record that may be tried again."""
    row = ControlOutbox.objects.using(targets.CONTROL).get(cell_name=key.cell)
    ControlFailure.objects.using(targets.CONTROL).create(
        cell_name=key.cell,
        shard_scope=key.scope,
        shard_identifier=key.identifier,
        level=0,
        category=int(Kind.PLAIN),
        object_identifier=1,
        message_id=row.pk,
        attempts=1,
        crashed=True,
        last_error="",
        last_traceback="",
    )


def _drain() -> None:
    targets.drain()


def _suspect() -> None:
    for key in (KEY, OTHER):
        _lost(key)
    targets.drain()


def _crash() -> None:
    for key in (KEY, OTHER):
        _crashed(key)
    targets.drain()


def _going_ahead() -> None:
    with assume_silo(SiloMode.CONTROL):
        for cell in ("us", "eu"):
            known = ahead_of(_engine(), cell)
            known._slow_claims = 99
            known.passed = known.settled = 1
            known._everything.looked(1.0, 1, 600.0)
            assert known.leads
    targets.drain()


def _behind() -> None:
    with assume_silo(SiloMode.CONTROL):
        for cell in ("us", "eu"):
            known = ahead_of(_engine(), cell)
            known._slow_claims = 99
            known.passed = known.settled = 10**12
            known._everything.looked(1.0, 1, 600.0)
            known.look_again()
            assert known.leads
    targets.drain()


def _direct() -> None:
    with assume_silo(SiloMode.CONTROL):
        for row in ControlOutbox.objects.using(targets.CONTROL).order_by("id"):
            row.drain_shard(flush_all=True)


def _steps_of_the_reference() -> None:
    with assume_silo(SiloMode.CONTROL):
        for key in ControlOutbox.find_scheduled_shards():
            ControlOutbox.prepare_next_from_shard(key).drain_shard()  # type: ignore[union-attr]
        for key in (KEY, OTHER):
            first = ControlOutbox.prepare_next_from_shard(key.columns())
            if first is not None:
                first.drain_shard()


CLAIMS: dict[str, Callable[[], None]] = {
    "due": _drain,
    "suspect": _suspect,
    "crashed": _crash,
    "ahead": _going_ahead,
    "behind": _behind,
    "direct": _direct,
    "the reference's steps": _steps_of_the_reference,
}


@pytest.mark.usefixtures("slow_looks")
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_switched_off_shard_is_not_claimed(claim: str) -> None:
    for form, switches in FORMS.items():
        targets.send("us", shard=1)
        targets.send("eu", shard=2, obj=2)
        with targets.listening() as calls, override_options({DISABLED_SHARDS: switches}):
            assert kill_switches.current().stops(KEY)
            CLAIMS[claim]()
        # With a switch on the whole scope, the other shard is off as well.
        assert calls == ([] if form == "scope" else [("eu", 2)]), form
        assert "us" in targets.left(), form
        _clear()


@pytest.mark.usefixtures("slow_looks")
@pytest.mark.parametrize("claim", CLAIMS)
def test_what_no_switch_stops_is_claimed(claim: str) -> None:
    targets.send("us", shard=1)
    targets.send("eu", shard=2, obj=2)
    off = [{"scope": "PLAIN", "cell": "eu", "identifier": 1}, {"cell": "ap"}]
    with targets.listening() as calls, override_options({DISABLED_SHARDS: off}):
        CLAIMS[claim]()
    assert sorted(calls) == [("eu", 2), ("us", 1)]


@pytest.mark.usefixtures("slow_looks")
@pytest.mark.parametrize("claim", CLAIMS)
def test_everything_off_stops_every_claim(claim: str) -> None:
    targets.send("us", shard=1)
    targets.send("eu", shard=2, obj=2)
    with targets.listening() as calls, override_options({DISABLED_SHARDS: [{"all": True}]}):
        CLAIMS[claim]()
    assert (calls, targets.left()) == ([], ["eu", "us"])


def test_a_flush_of_a_switched_off_shard_leaves_it_alone() -> None:
    for form, switches in FORMS.items():
        messages = Kind.PLAIN.as_control_outboxes(["us"], shard_identifier=1, object_identifier=1)
        with (
            targets.listening() as calls,
            override_options({DISABLED_SHARDS: switches}),
            assume_silo(SiloMode.CONTROL),
            outbox_context(transaction.atomic(using=targets.CONTROL), flush=True),
        ):
            for message in messages:
                message.save(using=targets.CONTROL)
        assert (calls, targets.left()) == ([], ["us"]), form
        _clear()
