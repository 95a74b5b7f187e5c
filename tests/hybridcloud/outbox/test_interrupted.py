"""A pass that is interrupted, or overtaken by a switch, at any of its steps.

The kinds: a failure that cannot be recorded, a last acknowledgement that fails, a switch set
between claim and pass, between two looks of one round, between two target cells; what a dropped
message leaves parked.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError

from hybridcloud import hooks
from hybridcloud.outbox import ControlOutbox
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.state import CellLease
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from . import test_targets as targets
from .ahead import known, learn, sweep
from .engine import (
    US,
    Kind,
    Lane,
    Worker,
    drain_us,
    execute,
    failures,
    ids,
    leases,
    listening,
    lose_drainer,
    make_due,
    message,
    parked,
    pass_time,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("committed")


def _expire() -> None:
    CellLease.objects.using(US).update(until="2020-01-01T00:00:00Z")


@pytest.mark.rule(8)
def test_a_crash_that_could_not_be_recorded_is_recorded_by_the_next_drainer() -> None:
    """The mark is the evidence: it goes with its lease, and not before."""
    pk = put(obj=7)
    lose_drainer(Lane.PLAIN, handling=pk)
    execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'disk full'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON hybridcloud_cellfailure"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        with listening(Kind.PLAIN), pytest.raises(DatabaseError, match="disk full"):
            drain_us()
    finally:
        execute("DROP TRIGGER refuse ON hybridcloud_cellfailure; DROP FUNCTION refuse()")
    _expire()
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert ([each.attempts for each in failures()], seen.objects) == ([1], [])


@pytest.mark.rule(8)
@pytest.mark.parametrize("error", [SystemExit, DatabaseError])
def test_a_last_acknowledgement_that_is_interrupted_is_tried_again(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(obj=7)
    run, raised = Engine.run, []

    def interrupted(self: Engine, statements: Sequence[str], *args: Any, **more: Any) -> None:
        if not raised and any("celllease" in each and "DELETE" in each for each in statements):
            raised.append(1)
            raise error
        run(self, statements, *args, **more)

    monkeypatch.setattr(Engine, "run", interrupted)
    with listening(Kind.PLAIN) as seen:
        with pytest.raises(error):
            drain_us()
        assert ids() == []
        _expire()
        drain_us()
    assert seen.objects == [7]


@pytest.mark.rule(5)
def test_a_switch_that_is_set_between_claim_and_pass_holds_for_the_pass() -> None:
    put(Kind.OTHER, obj=1)
    with ExitStack() as stack:

        class Watch(hooks.Hooks):
            def after_claim(self, shards: Sequence[Any]) -> None:
                stack.enter_context(override_options({DISABLED_SHARDS: [{"category": "OTHER"}]}))

        with hooks.installed(Watch()), listening(Kind.OTHER) as seen:
            sweep(rounds=1)
        assert seen.objects == []


@pytest.mark.rule(5)
@pytest.mark.usefixtures("slow_looks")
def test_a_switch_that_is_set_during_the_look_behind_holds_for_the_look_ahead() -> None:
    learn()
    known().settled = known().passed = put(Kind.ORDERED, 1, obj=11)
    put(Kind.ORDERED, 2, obj=21)
    off = {DISABLED_SHARDS: [{"scope": "ORDERED", "identifier": 2}]}
    with ExitStack() as stack:

        def act(*, object_identifier: int, **_: Any) -> None:
            if object_identifier == 11:
                stack.enter_context(override_options(off))

        with listening(Kind.ORDERED, act=act) as seen:
            known().look_again()
            sweep(rounds=1)
        assert seen.objects == [11]


@pytest.mark.rule(5)
def test_a_switch_that_is_set_while_one_cell_is_claimed_holds_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets.send("eu", "us")
    with assume_silo(SiloMode.CONTROL):
        other = Leases(Engine(ControlOutbox, targets.CONTROL))
        assert other.claim_known([ShardKey(int(Lane.PLAIN), 1, "eu")])
    claim_due = Leases.claim_due
    off = {DISABLED_SHARDS: [{"scope": "PLAIN", "identifier": 1}]}
    with ExitStack() as stack:

        def claim(self: Leases, **more: Any) -> bool:
            found = claim_due(self, **more)
            if more["cell"] == "eu":
                stack.enter_context(override_options(off))
            return found

        monkeypatch.setattr(Leases, "claim_due", claim)
        with targets.listening() as calls:
            targets.drain(rounds=1)
        assert calls == []


def test_a_dropped_message_leaves_the_dead_letter_of_its_object() -> None:
    dead = put(obj=3)
    columns = (
        "id, shard_scope, shard_identifier, category, object_identifier, payload,"
        " scheduled_from, scheduled_for, date_added, headers"
    )
    retire = f"UPDATE hybridcloud_celloutbox SET category = {int(Kind.GONE)}"
    execute(retire)
    execute(
        f"WITH gone AS (DELETE FROM hybridcloud_celloutbox RETURNING {columns})"
        f" INSERT INTO hybridcloud_cellparked ({columns}, reason)"
        f" SELECT {columns}, 'dead' FROM gone"
    )
    put(obj=3)
    execute(retire)
    drain_us()
    assert (ids(), parked()) == ([], [dead])


@pytest.mark.rule(8)
def test_a_recorded_crash_leaves_no_mark_that_would_count_it_again() -> None:
    """Between the record and the next handler a drainer may vanish, too."""
    pk = put(Kind.BY_OBJECT, obj=7)
    put(Kind.BY_OBJECT, obj=8)
    lose_drainer(Lane.BY_OBJECT, handling=pk)
    marks: list[int | None] = []

    class Watch(hooks.Hooks):
        def failed(self, fact: hooks.Failed) -> None:
            marks.append(leases()[0].handling)

    with hooks.installed(Watch()), listening(Kind.BY_OBJECT) as seen:
        drain_us()
    assert (marks, seen.objects) == ([None], [8])


@pytest.mark.rule(8)
def test_a_crash_that_becomes_due_behind_the_claim_is_not_tried_among_others() -> None:
    pk = put(Kind.BY_OBJECT, obj=7)
    lose_drainer(Lane.BY_OBJECT, handling=pk)
    drain_us()
    put(Kind.BY_OBJECT, obj=8)

    class Watch(hooks.Hooks):
        def after_claim(self, shards: Sequence[Any]) -> None:
            make_due()

    suspect: list[tuple[int, bool]] = []

    def act(*, object_identifier: int, **_: Any) -> None:
        suspect.append((object_identifier, leases()[0].suspect))

    put(Kind.BY_OBJECT, obj=7)
    with hooks.installed(Watch()), listening(Kind.BY_OBJECT, act=act):
        drain_us()
    assert suspect
    assert all(alone for _, alone in suspect)
    assert ids() == []


@pytest.mark.rule(7)
def test_a_stalled_worker_records_no_failure_of_its_successors_shard() -> None:
    pk = put(Kind.BY_OBJECT, obj=1)

    def act(**_: Any) -> None:
        execute("UPDATE hybridcloud_celllease SET token = 42, owner = 'successor'")
        pass_time(10)  # a drainer looks at its lease when a third of it is gone
        raise LookupError

    told: list[hooks.Failed] = []

    class Watch(hooks.Hooks):
        def failed(self, fact: hooks.Failed) -> None:
            told.append(fact)

    with hooks.installed(Watch()), listening(Kind.BY_OBJECT, act=act):
        drain_us()
    assert (told, ids(), parked(), failures()) == ([], [pk], [], [])


@pytest.mark.rule(5)
@pytest.mark.usefixtures("slow_looks")
def test_a_switch_that_is_set_between_claim_and_pass_holds_when_going_ahead() -> None:
    learn()
    put(Kind.ORDERED, 1, obj=1)
    with ExitStack() as stack:

        class Watch(hooks.Hooks):
            def after_claim(self, shards: Sequence[Any]) -> None:
                stack.enter_context(override_options({DISABLED_SHARDS: [{"category": "ORDERED"}]}))

        with hooks.installed(Watch()), listening(Kind.ORDERED) as seen:
            assert known().leads
            sweep(rounds=1)
        assert seen.objects == []


@pytest.mark.rule(4)
def test_a_message_that_dies_leaves_no_failure_on_record() -> None:
    put(Kind.LIMITED_OBJECT, obj=7)

    def act(**_: Any) -> None:
        raise LookupError

    with listening(Kind.LIMITED_OBJECT, act=act):
        for _ in range(2):
            make_due()
            drain_us()
    assert (len(parked("dead")), failures()) == (1, [])


@pytest.mark.rule(2)
def test_an_atomic_handler_whose_message_is_gone_leaves_nothing_behind() -> None:
    put(Kind.ATOMIC, obj=1)

    def act(**_: Any) -> None:
        message(Kind.PLAIN, obj=99).save(using=US)
        with Worker(lambda: execute("DELETE FROM hybridcloud_celloutbox")):
            pass

    with listening(Kind.ATOMIC, act=act) as seen:
        drain_us()
    assert (seen.objects, ids(), parked()) == ([1], [], [])
