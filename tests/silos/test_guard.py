"""The guard, on real connections and transactions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from psycopg import sql

from silos import AvailabilityError, SiloMode, assume_silo, guard
from silos.errors import SiloTransactionError

if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[..., None]

on_all_silos = pytest.mark.django_db(databases=["control", "cell_us", "cell_eu"])
for_real = pytest.mark.django_db(databases=["control", "cell_us", "cell_eu"], transaction=True)
US = assume_silo(SiloMode.CELL, cell="us")

INSERT = "INSERT INTO silo_tests_tenant (name) VALUES ('raw')"


def run(alias: str, statement: Any) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


def count(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM silo_tests_tenant")
        return int(cursor.fetchone()[0])


@for_real
def test_a_write_inside_a_transaction_of_another_silo_only_is_refused(
    committed_tables: None, silo_models: Any
) -> None:
    with (
        transaction.atomic(using="control"),
        US,
        pytest.raises(
            SiloTransactionError, match=r"'cell_us' inside a transaction of 'control' only.*atomic"
        ) as caught,
    ):
        silo_models.Tenant(name="x").save_base(using="cell_us", raw=True)
    assert (caught.value.written, caught.value.open_on) == ("cell_us", ("control",))
    assert count("cell_us") == 0


@on_all_silos
def test_the_blocks_of_a_test_case_do_not_count(tables: None, silo_models: Any) -> None:
    assert guard.is_testcase_transaction(connections["control"])
    run("cell_us", INSERT)
    assert count("cell_us") == 1


@on_all_silos
def test_a_block_inside_a_test_case_counts(tables: None) -> None:
    with (
        transaction.atomic(using="control"),
        pytest.raises(SiloTransactionError, match="'cell_us' inside a transaction of 'control'"),
    ):
        run("cell_us", INSERT)
    assert count("cell_us") == 0


@on_all_silos
def test_a_write_is_allowed_when_its_own_block_is_open_too(tables: None) -> None:
    with transaction.atomic(using="control"), transaction.atomic(using="cell_us"):
        run("cell_us", INSERT)
    assert count("cell_us") == 1


@on_all_silos
def test_reads_inside_a_transaction_of_another_silo_are_allowed(tables: None) -> None:
    with transaction.atomic(using="control"):
        assert count("cell_us") == 0
        run("cell_us", "WITH rows AS (SELECT 1) SELECT * FROM rows")


@pytest.mark.parametrize(
    "statement",
    [
        "-- why\n  insert into silo_tests_tenant (name) values ('raw')",
        "/* a\nb */ UPDATE silo_tests_tenant SET name = 'y'",
        "DELETE FROM silo_tests_tenant",
        f"WITH why AS (SELECT '{'y' * 5000}') DELETE FROM silo_tests_tenant",
        "WITH gone AS (DELETE FROM silo_tests_tenant RETURNING id) SELECT * FROM gone",
        "WITH one AS (SELECT 1) UPDATE silo_tests_tenant SET name = 'y'",
        INSERT.encode(),
        sql.SQL("DELETE FROM {}").format(sql.Identifier("silo_tests_tenant")),
    ],
)
@on_all_silos
def test_every_form_of_a_write_is_seen(tables: None, statement: Any) -> None:
    with transaction.atomic(using="control"), pytest.raises(SiloTransactionError):
        run("cell_us", statement)


@on_all_silos
def test_long_statements_are_not_remembered(tables: None) -> None:
    """They have their values in them, and come once."""
    before = guard._is_known_write.cache_info().currsize
    run("cell_us", f"WITH why AS (SELECT '{'y' * 5000}') SELECT 1")
    assert guard._is_known_write.cache_info().currsize == before


@on_all_silos
def test_an_alias_that_is_not_configured_spoils_no_write_to_another(
    tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for a system check to tell, and for who uses it."""
    known = {**guard.silo_aliases(), "mistyped": (SiloMode.CELL, "eu")}
    monkeypatch.setattr(guard, "silo_aliases", lambda: known)
    run("cell_us", INSERT)


@on_all_silos
def test_executemany_is_a_write_like_any_other(tables: None) -> None:
    with (
        transaction.atomic(using="control"),
        pytest.raises(SiloTransactionError),
        connections["cell_us"].cursor() as cursor,
    ):
        cursor.executemany("INSERT INTO silo_tests_tenant (name) VALUES (%s)", [("a",), ("b",)])


@on_all_silos
def test_savepoints_pass_and_roll_back(tables: None) -> None:
    with transaction.atomic(using="control"):
        sid = connections["cell_us"].savepoint()
        assert sid
        connections["cell_us"].savepoint_rollback(sid)


@on_all_silos
def test_a_process_boundary_leaves_the_callers_transactions_out(tables: None) -> None:
    with transaction.atomic(using="control"):
        with guard.process_boundary():
            run("cell_us", INSERT)
            # A block that was opened behind the boundary counts again.
            with transaction.atomic(using="control"), pytest.raises(SiloTransactionError):
                run("cell_us", INSERT)
        with pytest.raises(SiloTransactionError):
            run("cell_us", INSERT)
    assert count("cell_us") == 1


@for_real
def test_a_block_of_another_thread_does_not_count(committed_tables: None) -> None:
    failures: list[BaseException] = []

    def write() -> None:
        try:
            run("cell_us", INSERT)
        except SiloTransactionError as exc:
            failures.append(exc)
        finally:
            connections.close_all()

    with transaction.atomic(using="control"):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(10)
    assert failures == []
    assert count("cell_us") == 1


@for_real
def test_connections_of_new_threads_are_guarded(committed_tables: None) -> None:
    caught: list[BaseException] = []

    def write() -> None:
        try:
            with transaction.atomic(using="control"):
                run("cell_us", INSERT)
        except SiloTransactionError as exc:
            caught.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(10)
    assert len(caught) == 1


@on_all_silos
def test_using_another_silos_alias_is_refused_inside_an_assumed_silo(
    tables: None, silo_models: Any
) -> None:
    with US:
        silo_models.Tenant.objects.using("cell_us").create(name="mine")
        for touch in (
            lambda: silo_models.Tenant.objects.using("cell_eu").count(),
            lambda: silo_models.Tenant(name="x").save(using="cell_eu"),
            lambda: silo_models.Invoice.objects.using("control").delete(),
        ):
            with (
                pytest.raises(AvailabilityError, match="database of another silo, from cell 'us'"),
                transaction.atomic(using="cell_eu"),
            ):
                touch()
    # A monolith may look everywhere.
    assert silo_models.Tenant.objects.using("cell_eu").count() == 0
    with assume_silo(SiloMode.MONOLITH, cell="us"):
        assert silo_models.Tenant.objects.using("cell_eu").count() == 0


@for_real
def test_a_block_opened_before_a_switch_can_end_inside_it(committed_tables: None) -> None:
    block = transaction.atomic(using="control")
    inner = transaction.atomic(using="control")
    with block:
        inner.__enter__()
        with US:
            inner.__exit__(None, None, None)


@on_all_silos
def test_open_blocks_leave_a_test_cases_own_out(db: None) -> None:
    control = connections["control"]
    assert guard.open_blocks(control) == 0
    with transaction.atomic(using="control"), transaction.atomic(using="control"):
        assert guard.open_blocks(control) == 2
        assert not guard.is_testcase_transaction(control)
    assert guard.is_testcase_transaction(control)


@for_real
def test_without_a_transaction_there_is_no_test_cases_one() -> None:
    assert not guard.is_testcase_transaction(connections["control"])
    assert guard.open_blocks(connections["control"]) == 0


@on_all_silos
def test_installing_twice_guards_once_and_outlives_other_wrappers(db: None) -> None:
    control = connections["control"]

    def count_statements(execute: Any, *args: Any) -> Any:
        return execute(*args)

    control.execute_wrappers.remove(guard.guarded)
    with control.execute_wrapper(count_statements):
        guard.install()
        guard.install()
    assert control.execute_wrappers.count(guard.guarded) == 1
    assert count_statements not in control.execute_wrappers
