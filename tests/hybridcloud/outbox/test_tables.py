"""What the migrations make of the engine's tables."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connections

from hybridcloud.outbox import CellOutbox
from hybridcloud.outbox.drain.due import due_params
from hybridcloud.outbox.drain.lease import Leases
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine

from .engine import US, Kind, message, write

pytestmark = pytest.mark.django_db(transaction=True)


def options_of(alias: str, table: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [table])
        (options,) = cursor.fetchone()
    return set(options or ())


@pytest.mark.parametrize(("alias", "side"), [("cell_us", "cell"), ("control", "control")])
def test_autovacuum_knows_that_outboxes_are_queues(alias: str, side: str) -> None:
    outbox = options_of(alias, f"hybridcloud_{side}outbox")
    assert {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=5000"} <= outbox
    assert "vacuum_truncate=off" in outbox
    assert "fillfactor=50" in options_of(alias, f"hybridcloud_{side}lease")


@pytest.mark.parametrize(("alias", "side"), [("cell_us", "cell"), ("control", "control")])
def test_one_sequence_draws_the_ids_of_an_outbox_and_of_what_is_parked(
    alias: str, side: str
) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT column_default FROM information_schema.columns"
            " WHERE table_name = %s AND column_name = 'id'",
            [f"hybridcloud_{side}parked"],
        )
        (default,) = cursor.fetchone()
        cursor.execute(
            "SELECT cache_size FROM pg_sequences WHERE sequencename = %s",
            [f"hybridcloud_{side}outbox_id_seq"],
        )
        assert cursor.fetchone() == (1,)
    assert f"hybridcloud_{side}outbox_id_seq" in default


@pytest.mark.parametrize("setting", ["jit", "enable_seqscan", "enable_bitmapscan", "enable_sort"])
def test_the_engines_plans_are_pinned_for_its_own_statements_alone(setting: str) -> None:
    assert Engine(CellOutbox, "cell_us").results([f"SHOW {setting}"], {}) == [[("off",)]]
    with connections["cell_us"].cursor() as cursor:
        cursor.execute(f"SHOW {setting}")
        assert cursor.fetchone() == ("on",)


@pytest.mark.parametrize("setting", ["enable_seqscan", "enable_bitmapscan"])
def test_rows_are_found_by_their_ids_whatever_the_statistics_say(setting: str) -> None:
    engine = Engine(CellOutbox, "cell_us")
    engine.run(
        [f"SELECT set_config('tests.seen', '{setting} ' || current_setting('{setting}'), false)"],
        {},
        by_id=True,
    )
    with engine.connection.cursor() as cursor:
        cursor.execute("SHOW tests.seen")
        assert cursor.fetchone() == (f"{setting} off",)


def test_a_cell_has_no_table_of_control() -> None:
    with connections["cell_us"].cursor() as cursor:
        names = connections["cell_us"].introspection.table_names(cursor)
    assert "hybridcloud_celloutbox" in names
    assert not any(name.startswith("hybridcloud_control") for name in names)


def test_migrations_go_back_and_forth() -> None:
    for target in ("0003", "0005"):
        call_command("migrate", "hybridcloud", target, database="cell_us", verbosity=0)
    assert "vacuum_truncate=off" in options_of("cell_us", "hybridcloud_celloutbox")


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(
    ("name", "table", "index"),
    [
        ("fetch", "celloutbox", "shard"),
        ("fetch_own", "celloutbox", "shard"),
        ("fetch_own_one", "celloutbox", "shard"),
        ("before", "celloutbox", "shard"),
        ("newest", "celloutbox", "shard"),
        ("parked_of_groups", "cellparked", "group"),
    ],
)
def test_shards_are_read_by_their_index_whatever_the_statistics_say(
    name: str, table: str, index: str
) -> None:
    """Where they are of one hot group, the primary key seems to do as well."""
    engine = Engine(CellOutbox, US)
    write(*(message(Kind.ORDERED) for _ in range(300)))
    with engine.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO hybridcloud_cellparked (id, shard_scope, shard_identifier, category,"
            " object_identifier, reason, scheduled_from, scheduled_for, date_added)"
            " SELECT id, shard_scope, shard_identifier, category, object_identifier, 'held',"
            " scheduled_from, scheduled_for, date_added FROM hybridcloud_celloutbox"
        )
        cursor.execute(f"ANALYZE hybridcloud_{table}")
        cursor.execute(f"DELETE FROM hybridcloud_{table}")
    params = {
        "afters": "{0}",
        "after": 0,
        "first": 10**12,
        "bound": 10**12,
        "most": 25,
        "ns": [1],
        "categories": [Kind.ORDERED.value],
        "objects": [1],
        **engine.keys([ShardKey(int(Kind.ORDERED.get_scope()), 2)]),
    }
    plan = engine.results([f"EXPLAIN {engine.sql(name)}"], params)[0]
    scans = [line for (line,) in plan if f"on hybridcloud_{table} " in line]
    assert any(f"{table}_{index}" in line for line in scans)
    assert not any("pkey" in line for line in scans)


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("name", ["fetch", "fetch_own"])
def test_what_is_parked_or_failed_is_looked_for_by_shard_whatever_the_statistics_say(
    name: str,
) -> None:
    """Else each pass of many shards would read all that others have parked, and all their failures."""
    engine = Engine(CellOutbox, US)
    scope = int(Kind.ORDERED.get_scope())
    with engine.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO hybridcloud_cellparked (id, shard_scope, shard_identifier, category,"
            " object_identifier, reason, scheduled_from, scheduled_for, date_added)"
            " SELECT n, %s, 1000 + n, 1, n, 'held', now(), now(), now() FROM generate_series(1, 5000) n",
            [scope],
        )
        cursor.execute(
            "INSERT INTO hybridcloud_cellfailure (shard_scope, shard_identifier, level, category,"
            " object_identifier, message_id, attempts, last_error, last_traceback)"
            " SELECT %s, 1000 + n, 2, 1, n, n, 1, '', '' FROM generate_series(1, 5000) n",
            [scope],
        )
        cursor.execute("VACUUM ANALYZE hybridcloud_cellparked, hybridcloud_cellfailure")
    params = {
        "afters": [0] * 256,
        "bound": 10**12,
        "most": 25,
        "categories": [Kind.ORDERED.value],
        "objects": [1],
        **engine.keys([ShardKey(scope, each) for each in range(1, 257)]),
    }
    plan = engine.results([f"EXPLAIN (VERBOSE) {engine.sql(name)}"], params)[0]
    assert [line for (line,) in plan if "hashed" in line] == []
    for index in ("cellparked_group", "cellfailure_of_shard"):
        assert [line for (line,) in plan if index in line]


def analyze(engine: Engine, shards: range, *, messages: range) -> None:
    """Let the statistics be of leases of some shards, all of one claim, and of messages of others."""
    scope = int(Kind.ORDERED.get_scope())
    write(*(message(Kind.ORDERED, shard=each) for each in messages))
    with engine.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO hybridcloud_celllease (shard_scope, shard_identifier, owner, token, until)"
            " SELECT %s, n, 'somebody', 1, now() + interval '1 h' FROM generate_series(%s, %s) n",
            [scope, shards.start, shards.stop - 1],
        )
        cursor.execute("ANALYZE hybridcloud_celllease, hybridcloud_celloutbox")


@pytest.mark.usefixtures("committed")
def test_due_shards_come_in_order_whatever_the_statistics_say() -> None:
    """Else a pass would step over shards, which then had no turn in its round."""
    engine = Engine(CellOutbox, US)
    scope = int(Kind.ORDERED.get_scope())
    analyze(engine, range(5000, 5400), messages=range(1, 11))
    write(*(message(Kind.ORDERED, shard=each) for each in range(100, 400)))
    params = due_params(kill_switches.current(), after=(scope, 50), most=25, cell=None)
    due = engine.query("find_due", params)
    assert due == [(scope, each) for each in range(100, 125)]
    plan = engine.results([f"EXPLAIN {engine.sql('find_due')}"], params)[0]
    assert [line for (line,) in plan if "Anti" in line] == []  # such a join may take any order


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("count", [1, 256])
def test_leases_are_given_back_by_their_keys_whatever_the_statistics_say(count: int) -> None:
    """Where they are of one claim, its token seems to be of one row, to be compared with each key."""
    leases = Leases(engine := Engine(CellOutbox, US))
    analyze(engine, range(5000, 5600), messages=range(1, count + 1))
    scope = int(Kind.ORDERED.get_scope())
    assert leases.claim_known([ShardKey(scope, each) for each in range(1, count + 1)])
    (statement,), params = leases.releasing(leases.keys)
    plan = [line.strip() for (line,) in engine.results([f"EXPLAIN {statement}"], params)[0]]
    assert [line for line in plan if "Loop" in line or "Join" in line] == []
    assert [line for line in plan if "hybridcloud_celllease_pkey" in line]
    engine.run([statement], params)
    with engine.connection.cursor() as cursor:
        cursor.execute("SELECT token, count(*) FROM hybridcloud_celllease GROUP BY token")
        assert cursor.fetchall() == [(1, 600)]
