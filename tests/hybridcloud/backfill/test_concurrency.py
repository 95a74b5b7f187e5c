"""Several at the same time: writers who were there before, other walkers, and those who hold rows."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from fixtures.acme.categories import Category
from fixtures.acme.models import Organization, Project
from hybridcloud.backfill import backfill_outboxes_for, process_outbox_backfill_batch
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.run import walk_of
from hybridcloud.outbox import CellOutbox
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo
from tests.hybridcloud.outbox.engine import Child, Worker

from .filling import (
    ORGANIZATIONS,
    US,
    execute,
    fill_organizations,
    fill_projects,
    other_session,
    put_in_redis,
    state,
    walk,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

pytestmark = pytest.mark.usefixtures("committed")
KEY = "outbox_replication.acme_organization.replication_version"


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    """Return a second session of the us cell's database, of code that knows no outbox."""
    with other_session() as connection:
        yield connection
        connection.rollback()


def _insert(connection: psycopg.Connection, number: int) -> None:
    connection.execute(
        "INSERT INTO acme_organization (id, name, slug) VALUES (%s, 'o', %s)",
        [number, f"o{number}"],
    )


def test_a_row_that_old_code_commits_late_behind_the_walk_is_walked(
    other: psycopg.Connection,
) -> None:
    fill_organizations([10, 20, 30])
    _insert(other, 5)
    batch = process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    assert batch is not None
    assert (batch.count, batch.has_more, len(batch.waits_for)) == (0, True, 1)
    assert state() == (0, 1)
    # It goes on waiting, and never inside the call.
    assert process_outbox_backfill_batch(Organization, 2, force_synchronous=True) == batch
    other.commit()
    walk()
    assert written() == [5, 10, 20, 30]


def test_an_id_above_the_walk_that_old_code_draws_while_it_waits_is_walked_too(
    other: psycopg.Connection,
) -> None:
    fill_organizations([10])
    _insert(other, 20)
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)
    _insert(other, 30)
    other.commit()
    walk()
    assert written() == [10, 20, 30]


def test_writers_who_come_after_the_fence_do_not_hold_the_walk(other: psycopg.Connection) -> None:
    fill_organizations([10, 20])
    assert process_outbox_backfill_batch(Organization, 1, force_synchronous=True) is not None
    _insert(other, 5)
    walk()
    assert written() == [10, 20]


def test_a_tick_passes_by_a_model_that_waits_and_forced_it_is_something_to_do(
    other: psycopg.Connection,
) -> None:
    fill_organizations([10])
    _insert(other, 5)
    with assume_silo(SiloMode.CELL, cell="us"):
        with override_options({KEY: 1}):
            assert backfill_outboxes_for(SiloMode.CELL) is False
        assert backfill_outboxes_for(SiloMode.CELL, force_synchronous=True) is True
        other.commit()
        while backfill_outboxes_for(SiloMode.CELL, force_synchronous=True):
            pass
    assert written() == [5, 10]


def test_walkers_who_race_leave_no_row_out_and_write_none_twice() -> None:
    fill_organizations(range(1, 301))

    def race() -> int:
        with assume_silo(SiloMode.CELL, cell="us"):
            return sum(batch.count for batch in walk(7))

    workers = [Worker(race) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert sum(worker.finish() for worker in workers) == 300
    assert Counter(written()) == Counter(range(1, 301))
    assert state() == (0, 2)


def test_a_walker_whose_position_is_stale_does_nothing() -> None:
    fill_organizations(range(1, 6))
    process_outbox_backfill_batch(Organization, 1, force_synchronous=True)
    stale = cursors.read(US, ORGANIZATIONS)
    process_outbox_backfill_batch(Organization, 1, force_synchronous=True)
    batch = walk_of(Organization).step(stale, target=1, most=10)
    assert batch is not None
    assert (batch.lost, batch.count, batch.has_more) == (True, 0, True)
    assert written() == [1, 2]


def test_two_who_begin_at_once_take_one_fence() -> None:
    fill_organizations([1, 2])
    before = cursors.read(US, ORGANIZATIONS)
    walker = walk_of(Organization)
    first, second = (walker.step(before, target=1, most=10) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.count, second.lost) == (2, True)
    assert written() == [1, 2]


def test_ticks_that_race_keep_the_rate() -> None:
    fill_organizations(range(1, 101))

    def tick() -> bool:
        with assume_silo(SiloMode.CELL, cell="us"):
            return backfill_outboxes_for(SiloMode.CELL, max_batch_rate=10)

    with override_options({KEY: 1}):
        workers = [Worker(tick) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.finish()
    assert len(written()) == 10


def test_a_payload_that_was_read_is_never_written_behind_a_newer_one(
    other: psycopg.Connection,
) -> None:
    fill_organizations([1])
    fill_projects(range(1, 31), organization=1)
    process_outbox_backfill_batch(Project, 1, force_synchronous=True)
    other.execute("UPDATE acme_project SET slug = 'newer' WHERE id = 3")
    # A row that somebody changes makes the batches small, and then waits by itself.
    counts = [process_outbox_backfill_batch(Project, 20, True) for _ in range(2)]
    assert [each.count for each in counts if each] == [1, 0]
    assert execute("SELECT count(*) FROM acme_project")[0][0] == 30
    other.commit()
    walk(50, model=Project)
    rows = CellOutbox.objects.using(US).filter(category=Category.PROJECT_UPDATE)
    assert dict(rows.values_list("object_identifier", "payload"))[3] == {"slug": "newer"}
    assert rows.count() == 30


def test_rows_are_not_locked_for_messages_that_hold_only_their_ids(
    other: psycopg.Connection,
) -> None:
    fill_organizations([1, 2])
    process_outbox_backfill_batch(Organization, 1, force_synchronous=True)
    other.execute("UPDATE acme_organization SET name = 'changing' WHERE id = 2")
    walk()
    assert written() == [1, 2]


_WALKER = """
import django
django.setup()
from fixtures.acme.models import Organization
from hybridcloud.backfill import process_outbox_backfill_batch
from silos import SiloMode, assume_silo
with assume_silo(SiloMode.CELL, cell="us"):
    while process_outbox_backfill_batch(Organization, 3, force_synchronous=True):
        print("batch", flush=True)
"""


@pytest.mark.parametrize("redis_is_lost", [True, False])
def test_a_walker_that_is_killed_loses_no_batch_and_begins_nothing_again(
    redis_is_lost: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    fill_organizations(range(1, 3001))
    environment = {**Child.environment(), "DJANGO_SETTINGS_MODULE": "fixtures.settings.test"}
    with subprocess.Popen(
        [sys.executable, "-c", _WALKER], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline() == "batch\n"
        process.kill()
    (position, version), done = state(), len(written())
    assert (position, version) == (done + 1, 1)
    assert 15 <= done < 3000
    if redis_is_lost:
        put_in_redis(None)
    walk(1000)
    assert written() == list(range(1, 3001))
