"""Shares: so much a minute, less what waits, for each model alike, and live traffic first."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.acme.categories import Category
from fixtures.acme.models import ApiToken, Organization, OrganizationMember, Project
from hybridcloud import hooks
from hybridcloud.backfill import backfill_outboxes_for, process_outbox_backfill_batch
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.pressure import count_waiting, measure_lag
from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.deliver.tasks import enqueue_outbox_jobs
from hybridcloud.outbox.store.state import CellFailure, CellParked, Reason
from hybridcloud.registry import backfill_outboxes
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .filling import (
    US,
    execute,
    fill_members,
    fill_organizations,
    fill_projects,
    fill_tokens,
    state,
    written,
    written_in_control,
)

pytestmark = pytest.mark.django_db
ORGANIZATION = "outbox_replication.acme_organization"
MEMBER = "outbox_replication.acme_organizationmember"
PROJECT = "outbox_replication.acme_project"
ON = {f"{ORGANIZATION}.replication_version": 1}


def _tick(most: int | None = None, *, scheduled: int = 0) -> bool:
    with assume_silo(SiloMode.CELL, cell="us"):
        return backfill_outboxes_for(SiloMode.CELL, scheduled, max_batch_rate=most)


def _drained() -> None:
    """Let all messages be delivered, as if drainers had been by."""
    execute("DELETE FROM hybridcloud_celloutbox")


def _minute_later() -> None:
    """Let what was written be more than a minute ago."""
    execute("UPDATE hybridcloud_backfillcursor SET recent = '{}'")


def test_nothing_runs_until_an_option_says_so() -> None:
    fill_organizations([1, 2])
    assert _tick() is False
    assert written() == []
    with override_options(ON):
        assert _tick() is True
    assert written() == [1, 2]


def test_at_most_so_many_are_written_in_a_minute() -> None:
    fill_organizations(range(1, 31))
    with override_options(ON):
        assert _tick(10) is True
        assert len(written()) == 10
        _drained()
        assert _tick(10) is False
        _minute_later()
        assert _tick(10) is True
        assert written() == list(range(11, 21))


def test_what_waits_already_is_measured_and_taken_off() -> None:
    fill_organizations(range(1, 31))
    with assume_silo(SiloMode.CELL, cell="us"):
        for number in range(100, 104):
            Organization.objects.create(id=number, name="live", slug=f"live{number}")
    with override_options(ON):
        _tick(10)
    assert len(written()) == 10


def test_parked_messages_count_as_waiting_but_not_those_that_nobody_waits_for() -> None:
    fill_organizations(range(1, 31))
    for number, reason in enumerate(Reason):
        execute(
            "INSERT INTO hybridcloud_cellparked (shard_scope, shard_identifier, category, object_identifier,"
            " scheduled_from, scheduled_for, reason) VALUES (0, 1, 2, %s, now(), now() + %s::interval, %s)",
            [number, "1 hour", reason.value],
        )
    with assume_silo(SiloMode.CELL, cell="us"):
        assert count_waiting(SiloMode.CELL, most=100) == 1
    CellParked.objects.using(US).update(scheduled_for="2020-01-01T00:00:00Z")
    with assume_silo(SiloMode.CELL, cell="us"):
        assert count_waiting(SiloMode.CELL, most=100) == 2
    with override_options(ON):
        _tick(10)
    assert len(written()) == 8


def test_what_the_caller_knows_to_wait_is_taken_off_too() -> None:
    fill_organizations(range(1, 31))
    with override_options(ON):
        assert _tick(10, scheduled=10) is False
        assert _tick(10, scheduled=11) is False
        assert _tick(10, scheduled=7) is True
    assert len(written()) == 3


def test_the_rate_is_an_option_and_else_the_setting(settings: Any) -> None:
    fill_organizations(range(1, 31))
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "OUTBOX_BACKFILLS_PER_MINUTE": 4}
    with override_options(ON):
        _tick()
    assert len(written()) == 4
    with override_options({**ON, "hybridcloud.backfill.per_minute": 6}):
        _drained()
        _tick()
    assert len(written()) == 2


def test_sparse_ids_cost_no_more_than_their_rows() -> None:
    fill_organizations([1, 1000, 10**6, 10**9])
    with override_options(ON):
        _tick(4)
    assert written() == [1, 1000, 10**6, 10**9]


def test_models_share_the_rate_fairly_and_what_one_leaves_the_others_take() -> None:
    fill_organizations(range(1, 4))
    fill_members(range(1, 101), organization=1)
    fill_projects(range(1, 101), organization=1)
    options = {f"{each}.replication_version": 1 for each in (ORGANIZATION, MEMBER, PROJECT)}
    with override_options(options):
        _tick(43)
    counts = [
        len(written(category))
        for category in (
            Category.ORGANIZATION_UPDATE,
            Category.ORGANIZATION_MEMBER_UPDATE,
            Category.PROJECT_UPDATE,
        )
    ]
    assert counts == [3, 20, 20]


def test_with_a_rate_below_the_number_of_models_each_has_its_turn() -> None:
    fill_organizations(range(1, 10))
    fill_members(range(1, 10), organization=1)
    options = {f"{each}.replication_version": 1 for each in (ORGANIZATION, MEMBER)}
    with override_options(options):
        for _ in range(4):
            _tick(1)
            _drained()
            execute("UPDATE hybridcloud_backfillcursor SET recent = '{}'")
    with assume_silo(SiloMode.CELL, cell="us"):
        rows = [
            cursors.read(US, model._meta.db_table).row_count
            for model in (Organization, OrganizationMember)
        ]
    assert rows == [2, 2]


def test_messages_to_several_cells_are_counted_not_rows() -> None:
    fill_tokens(range(1, 20))
    with (
        assume_silo(SiloMode.CONTROL),
        override_options({"outbox_replication.acme_apitoken.replication_version": 1}),
    ):
        backfill_outboxes_for(SiloMode.CONTROL, max_batch_rate=9)
    assert len(written_in_control(Category.API_TOKEN_UPDATE)) == 8


@pytest.mark.parametrize("key", ["hybridcloud.backfill.paused", f"{ORGANIZATION}.backfill.paused"])
def test_a_pause_stops_it_where_it_is_and_it_resumes_there(key: str) -> None:
    fill_organizations(range(1, 11))
    with override_options(ON):
        _tick(4)
        _minute_later()
        _drained()
        with override_options({key: True}):
            assert _tick(4) is False
        assert state("acme_organization") == (5, 1)
        _tick(4)
    assert written() == [5, 6, 7, 8]


def test_a_pause_of_one_model_lets_the_others_go_on() -> None:
    fill_organizations([1])
    fill_members([1], organization=1)
    with override_options(
        {
            **ON,
            f"{MEMBER}.replication_version": 1,
            f"{ORGANIZATION}.backfill.paused": True,
        }
    ):
        _tick()
    assert written() == []
    assert written(Category.ORGANIZATION_MEMBER_UPDATE) == [1]


def _put_old(shard: int, *, seconds: int) -> None:
    with assume_silo(SiloMode.CELL, cell="us"):
        message = Category.ORGANIZATION_UPDATE.as_cell_outbox(
            shard_identifier=shard, object_identifier=shard
        )
        message.save()
    execute(
        "UPDATE hybridcloud_celloutbox SET date_added = clock_timestamp() - make_interval(secs => %s),"
        " scheduled_for = clock_timestamp() - make_interval(secs => %s) WHERE shard_identifier = %s",
        [seconds, seconds, shard],
    )


def test_while_live_traffic_lags_a_backfill_waits() -> None:
    fill_organizations([1, 2])
    _put_old(77, seconds=90)
    with override_options(ON):
        assert _tick() is False
        with override_options({"hybridcloud.backfill.max_lag": 100.0}):
            assert _tick() is True


@pytest.mark.parametrize("stopped_by", ["backoff", "switch"])
def test_what_waits_for_something_else_is_no_lag(stopped_by: str) -> None:
    fill_organizations([1, 2])
    _put_old(77, seconds=90)
    options: dict[str, Any] = dict(ON)
    if stopped_by == "backoff":
        CellFailure.objects.using(US).create(
            shard_scope=0, shard_identifier=77, level=0, category=2, object_identifier=77,
            message_id=1, attempts=1, scheduled_for="2100-01-01T00:00:00Z",
            last_error="", last_traceback="",
        )  # fmt: skip
    else:
        options["hybridcloud.disabled_shards"] = [{"scope": 0, "identifier": 77}]
    with override_options(options):
        assert _tick() is True


def test_a_shard_that_is_being_drained_lags_as_well() -> None:
    _put_old(77, seconds=90)
    execute(
        "INSERT INTO hybridcloud_celllease (shard_scope, shard_identifier, owner, token, until)"
        " VALUES (0, 77, 'somebody', 1, clock_timestamp() + interval '1 minute')"
    )
    with assume_silo(SiloMode.CELL, cell="us"):
        assert measure_lag(SiloMode.CELL) > 80


def test_an_option_that_is_lowered_stops_it_at_its_next_batch() -> None:
    fill_organizations(range(1, 11))
    with override_options(ON):
        _tick(4)
    _minute_later()
    _drained()
    assert _tick(4) is False
    assert state("acme_organization") == (5, 1)


def test_forced_no_option_no_rate_and_no_lag_is_heeded() -> None:
    fill_organizations(range(1, 31))
    _put_old(77, seconds=900)
    with (
        assume_silo(SiloMode.CELL, cell="us"),
        override_options({"hybridcloud.backfill.paused": True}),
    ):
        calls = 0
        while backfill_outboxes_for(SiloMode.CELL, 50, max_batch_rate=12, force_synchronous=True):
            calls += 1
    assert written()[1:] == list(range(1, 31))
    assert calls == 3


def test_a_monolith_goes_on_with_every_silo() -> None:
    fill_organizations([1])
    fill_organizations([2], alias="cell_eu")
    fill_tokens([3])
    while backfill_outboxes_for(SiloMode.MONOLITH, force_synchronous=True):
        pass
    assert (written(), written(alias="cell_eu")) == ([1], [2])
    assert written_in_control(Category.API_TOKEN_UPDATE) == [(3, "eu"), (3, "us")]


def test_one_model_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch(hooks.Hooks):
        def __init__(self) -> None:
            self.facts: list[hooks.Captured] = []

        def captured(self, fact: hooks.Captured) -> None:
            self.facts.append(fact)

    def broken(self: Project) -> Any:
        raise ValueError("no payload today")

    fill_organizations([1])
    fill_projects([1], organization=1)
    monkeypatch.setattr(Project, "payload_for_update", broken)
    with (
        hooks.installed(Watch()) as watch,
        override_options({**ON, f"{PROJECT}.replication_version": 1}),
    ):
        assert _tick() is True
    assert written() == [1]
    assert state("acme_project") == (0, 1)
    assert [(fact.where, str(fact.error)) for fact in watch.facts] == [
        ("backfill", "no payload today")
    ]


def test_each_tick_of_the_scheduler_goes_on_with_backfills() -> None:
    fill_organizations([1, 2])
    with override_options(ON):
        enqueue_outbox_jobs.run(cell="us", process_outbox_backfills=False)
        assert written() == []
        enqueue_outbox_jobs.run(cell="us")
    assert written() == [1, 2]


def test_the_slot_of_the_ticks_is_filled() -> None:
    fill_organizations([1])
    with assume_silo(SiloMode.CELL, cell="us"), override_options(ON):
        assert backfill_outboxes("CELL", 0) is True
        assert backfill_outboxes("CELL", 0) is False


def test_a_silo_in_which_nothing_is_asked_for_costs_a_tick_no_statement(
    django_assert_num_queries: Any,
) -> None:
    _tick()
    with django_assert_num_queries(0, using=US):
        _tick()


def test_backfilled_rows_are_replicated_like_changed_ones(outbox_runner: Any) -> None:
    from fixtures.acme.models import OrganizationMapping

    fill_organizations([1, 2])
    with outbox_runner():
        process_outbox_backfill_batch(Organization, 10, force_synchronous=True)
    assert CellOutbox.objects.using(US).count() == 0
    with assume_silo(SiloMode.CONTROL):
        assert sorted(OrganizationMapping.objects.values_list("organization_id", flat=True)) == [
            1,
            2,
        ]
    assert ApiToken.replication_version == 1
