"""Rule 5: a kill switch stops the handlers of what it names and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver import tick as schedule
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.switches import DISABLED_SHARDS
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .engine import US, Kind, Lane, drain_us, ids, leases, listening, message, parked, put

pytestmark = [pytest.mark.rule(5), pytest.mark.usefixtures("committed")]

SWITCHES: list[dict[str, Any]] = [
    {"scope": "PLAIN", "identifier": 1},
    {"scope": Lane.PLAIN.value},
    {"identifier": 1},
    {"all": True},
]


@pytest.mark.parametrize("switch", SWITCHES, ids=str)
def test_a_switched_off_shard_keeps_all_of_its_messages_and_lifting_resumes(
    switch: dict[str, Any],
) -> None:
    kept = [put(obj=1, payload=n) for n in range(3)]
    with listening(Kind.PLAIN) as seen:
        with override_options({DISABLED_SHARDS: [switch]}):
            drain_us()
            message(obj=1).drain_shard()
            assert seen.calls == []
            assert ids() == kept
            assert leases() == []
            assert message(obj=1).should_skip_shard()
        drain_us()
    assert [call[2] for call in seen.calls] == [2]
    assert ids() == []


def test_other_shards_go_on_while_one_is_switched_off() -> None:
    put(shard=1, obj=1)
    put(shard=2, obj=2)
    with (
        override_options({DISABLED_SHARDS: [{"scope": "PLAIN", "identifier": 1}]}),
        listening(Kind.PLAIN) as seen,
    ):
        drain_us()
    assert seen.objects == [2]


def test_a_switch_on_a_category_parks_it_and_the_rest_of_the_shard_goes_on() -> None:
    stopped = put(Kind.OTHER, obj=1)
    put(Kind.PLAIN, obj=2)
    with listening(Kind.PLAIN, Kind.OTHER) as seen:
        with override_options({DISABLED_SHARDS: [{"category": "OTHER"}]}):
            drain_us()
            drain_us()
            assert seen.objects == [2]
            assert parked("held") == [stopped]
        drain_us()
    assert seen.objects == [2, 1]
    assert parked() == ids() == []


def test_a_switch_with_a_cell_names_nothing_in_a_cells_own_table() -> None:
    kept = put(Kind.OTHER, obj=1)
    off = {DISABLED_SHARDS: [{"category": "OTHER"}]}
    other = {DISABLED_SHARDS: [{"category": "OTHER", "cell": "us"}]}
    with listening(Kind.OTHER) as seen:
        with override_options(off):
            drain_us()
        assert parked("held") == [kept]
        with override_options(other):
            drain_us()
    assert (seen.objects, parked()) == ([1], [])


def test_a_switch_on_a_category_deletes_only_older_messages_of_what_it_keeps() -> None:
    put(Kind.OTHER, obj=1, payload="old")
    put(Kind.OTHER, obj=1, payload="new")
    with (
        override_options({DISABLED_SHARDS: [{"category": "OTHER"}]}),
        listening(Kind.OTHER),
    ):
        drain_us()
        put(Kind.OTHER, obj=1, payload="newest")
        drain_us()
        assert len(parked("held")) == 1
    with listening(Kind.OTHER) as seen:
        drain_us()
    assert [call[2] for call in seen.calls] == ["newest"]


def test_a_tick_compacts_a_deep_switched_off_shard_without_a_handler() -> None:
    from .engine import write

    write(*(message(Kind.PLAIN, obj=n, payload=1) for n in range(600)))
    write(*(message(Kind.PLAIN, obj=n, payload=2) for n in range(600)))
    with (
        override_options({DISABLED_SHARDS: [{"scope": "PLAIN", "identifier": 1}]}),
        listening(Kind.PLAIN) as seen,
        assume_silo(SiloMode.CELL, cell="us"),
    ):
        schedule.tick(Engine(CellOutbox, US))
        assert seen.calls == []
    assert len(ids()) == 600
    assert leases() == []
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert {call[2] for call in seen.calls} == {2}
