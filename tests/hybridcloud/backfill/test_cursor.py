"""Positions: how they move, and that the database decides whatever redis shows."""

from __future__ import annotations

import pytest
from django.db import transaction

from fixtures.acme.models import Organization
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill import (
    get_processing_state,
    process_outbox_backfill_batch,
    set_processing_state,
)
from hybridcloud.testutils import override_options

from .filling import (
    ORGANIZATIONS,
    US,
    fill_organizations,
    put_in_redis,
    shown,
    state,
    walk,
    written,
)

KEY = "outbox_replication.acme_organization.replication_version"

pytestmark = pytest.mark.django_db


@pytest.fixture
def version_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code of organizations be at version 3."""
    monkeypatch.setattr(Organization, "replication_version", 3)


def _step(size: int = 2, *, option: int) -> None:
    with override_options({KEY: option}):
        process_outbox_backfill_batch(Organization, size)


def test_a_first_read_makes_the_initial_position_in_both_places() -> None:
    assert get_processing_state(ORGANIZATIONS) == (0, 1)
    assert state() == (0, 1)
    assert shown() == [0, 1]


def test_a_table_that_nobody_replicates_has_no_position() -> None:
    with pytest.raises(LookupError, match="No producing model or table 'acme_userreplica'"):
        get_processing_state("acme_userreplica")


def test_positions_under_way_and_done() -> None:
    fill_organizations([5, 9, 40])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    assert get_processing_state(ORGANIZATIONS) == (10, 1)
    assert shown() == [10, 1]
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    assert get_processing_state(ORGANIZATIONS) == (0, 2)
    assert shown() == [0, 2]


def test_what_is_done_is_not_done_again() -> None:
    fill_organizations([5])
    walk()
    assert process_outbox_backfill_batch(Organization, 2, force_synchronous=True) is None
    assert written() == [5]
    assert state() == (0, 2)


def test_a_new_higher_target_begins_again(version_three: None) -> None:
    fill_organizations([1, 2, 3])
    _step(option=1)
    assert state() == (3, 1)
    _step(1, option=2)
    assert state() == (2, 2)
    assert written() == [1, 2, 1]


def test_a_target_that_jumps_skips_the_versions_between(version_three: None) -> None:
    fill_organizations([1, 2, 3])
    walk_to_end = [_step(5, option=1)]
    assert walk_to_end == [None]
    assert state() == (0, 2)
    _step(option=3)
    assert state() == (3, 3)


def test_a_lower_target_stops_the_walk_and_keeps_its_position(version_three: None) -> None:
    fill_organizations([1, 2, 3])
    _step(option=2)
    assert state() == (3, 2)
    for lower in (1, 0):
        _step(option=lower)
        assert state() == (3, 2)
    assert written() == [1, 2]
    _step(option=2)
    assert written() == [1, 2, 3]
    assert state() == (0, 3)


def test_done_is_marked_at_the_gated_target_so_that_a_higher_gate_still_runs(
    version_three: None,
) -> None:
    fill_organizations([1, 2])
    _step(5, option=2)
    assert state() == (0, 3)
    _step(5, option=2)
    assert written() == [1, 2]
    _step(5, option=3)
    assert written() == [1, 2, 1, 2]
    assert state() == (0, 4)


def test_a_position_can_be_set_by_hand() -> None:
    fill_organizations([1, 2, 3, 4])
    set_processing_state(ORGANIZATIONS, 3, 1)
    assert get_processing_state(ORGANIZATIONS) == (3, 1)
    assert shown() == [3, 1]
    walk()
    assert written() == [3, 4]


def test_a_position_that_is_set_to_zero_begins_at_the_least_id() -> None:
    fill_organizations([-4, 7])
    set_processing_state(ORGANIZATIONS, 0, 1)
    walk()
    assert written() == [-4, 7]


@pytest.mark.parametrize(
    "lie",
    [
        None,
        "[0, 1]",
        "[2, 1]",
        "[4, 1]",
        "[900, 1]",
        "[0, 2]",
        "[0, 99]",
        "garbage",
        "[]",
        '{"a": 1}',
        '["x", "y"]',
        "null",
    ],
)
def test_whatever_redis_shows_the_database_decides(lie: str | None) -> None:
    fill_organizations([1, 2, 3, 4, 5])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    put_in_redis(lie)
    assert get_processing_state(ORGANIZATIONS) == (3, 1)
    assert shown() == [3, 1]
    put_in_redis(lie)
    walk()
    assert written() == [1, 2, 3, 4, 5]
    assert shown() == [0, 2]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", None])
def test_without_redis_a_backfill_goes_on(url: str | None, settings: object) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": url}  # type: ignore[attr-defined]
    fill_organizations([1, 2, 3])
    assert get_processing_state(ORGANIZATIONS) == (0, 1)
    walk()
    assert written() == [1, 2, 3]
    assert get_processing_state(ORGANIZATIONS) == (0, 2)


def test_a_redis_that_is_down_is_asked_once_and_then_left_alone_for_a_while(
    settings: object, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": "redis://127.0.0.1:1/0"}  # type: ignore[attr-defined]
    fill_organizations(range(1, 20))
    walk()
    assert len([each for each in caplog.records if "Redis is left out" in each.message]) == 1


def test_a_batch_that_rolls_back_takes_its_position_along() -> None:
    fill_organizations([1, 2, 3])
    get_processing_state(ORGANIZATIONS)
    with transaction.atomic(using=US):
        process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
        assert written() == [1, 2]
        transaction.set_rollback(True, using=US)
    # Redis shows what never was, and is not believed.
    assert shown() == [3, 1]
    assert written() == []
    walk()
    assert written() == [1, 2, 3]


def test_positions_moved_by_somebody_else_are_not_overwritten() -> None:
    before = cursors.read(US, ORGANIZATIONS)
    assert cursors.begin_again(US, before, 2) is not None
    assert cursors.begin_again(US, before, 3) is None
    assert cursors.hold_at(US, before, []) is None
    assert cursors.finish(US, before) is None
    assert state() == (0, 2)
