"""A sequence that keeps ids in store is found; without it the newest message would not be the newest."""

from __future__ import annotations

import pytest
from django.core.checks import Tags, run_checks
from django.db import connections

from hybridcloud.checks.sequences import check_sequences
from hybridcloud.outbox import CellOutbox, ControlOutbox

pytestmark = pytest.mark.django_db
ALL = ["control", "cell_us", "cell_eu"]


def change_cache(alias: str, table: str, size: int) -> None:
    """Change the sequence of a table; the test's own transaction takes it back."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE {table}_id_seq CACHE {size}")


def test_our_migrations_make_sequences_without_a_cache() -> None:
    assert check_sequences(databases=ALL) == []


def test_e046_a_sequence_with_a_cache_in_a_cell() -> None:
    change_cache("cell_eu", "hybridcloud_celloutbox", 20)
    (found,) = check_sequences(databases=ALL)
    assert found.id == "hybridcloud.E046"
    assert found.obj is CellOutbox
    assert found.msg == (
        "Sequence hybridcloud_celloutbox_id_seq of hybridcloud.CellOutbox in 'cell_eu' has CACHE 20."
    )
    assert found.hint is not None
    assert "ALTER SEQUENCE hybridcloud_celloutbox_id_seq CACHE 1" in found.hint


def test_e046_in_control() -> None:
    change_cache("control", "hybridcloud_controloutbox", 2)
    assert [each.obj for each in check_sequences(databases=ALL)] == [ControlOutbox]
    assert check_sequences(databases=["cell_us"]) == []


def test_e046_is_found_under_another_name() -> None:
    with connections["cell_us"].cursor() as cursor:
        cursor.execute("ALTER SEQUENCE hybridcloud_celloutbox_id_seq CACHE 5")
        cursor.execute("ALTER SEQUENCE hybridcloud_celloutbox_id_seq RENAME TO ids")
    (found,) = check_sequences(databases=["cell_us"])
    assert "Sequence ids" in found.msg


def test_a_database_without_the_tables_has_no_findings() -> None:
    with connections["cell_us"].cursor() as cursor:
        cursor.execute("ALTER TABLE hybridcloud_celloutbox RENAME TO elsewhere")
    assert check_sequences(databases=["cell_us"]) == []


def test_it_runs_for_the_databases_that_are_asked_for() -> None:
    change_cache("cell_us", "hybridcloud_celloutbox", 20)
    assert check_sequences() == []
    found = run_checks(tags=[Tags.database], databases=["cell_us"])
    assert "hybridcloud.E046" in {each.id for each in found}
