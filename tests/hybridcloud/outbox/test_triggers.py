"""In trigger mode every path writes one message for each changed row, raw SQL included, and costs no statement more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connections, transaction
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from hybridcloud import causation
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.deliver import flush
from hybridcloud.outbox.triggers import checks as checking
from hybridcloud.outbox.triggers.bodies import problem_of, triggers_of
from hybridcloud.outbox.triggers.install import differences, install
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US
from .trigger_zoo import PARTITIONED, TABLES, Bead, Coin, Part, Plain, Shelf
from .writing import recorded, rolled_back

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


@pytest.fixture(scope="module", autouse=True)
def _tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connections[US].schema_editor() as editor:
            for model in TABLES:
                editor.create_model(model)
            editor.execute(PARTITIONED)
        install(US, [Bead, Part])
        yield
        with connections[US].schema_editor() as editor:
            for model in reversed(TABLES):
                editor.delete_model(model)
            editor.execute("DROP TABLE zoo_part")
            for trigger in (*triggers_of(Bead), *triggers_of(Part)):
                editor.execute(f"DROP FUNCTION IF EXISTS {trigger.name}")


@pytest.fixture(autouse=True)
def _in_us(_tables: None, settings: Any) -> Iterator[None]:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "sync"}
    with assume_silo(SiloMode.CELL, cell="us"):
        sql(
            "DELETE FROM zoo_bead; DELETE FROM zoo_shelf; DELETE FROM zoo_part; DELETE FROM zoo_plain"
        )
        CellOutbox.objects.all().delete()
        yield


@pytest.fixture(autouse=True)
def kicks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Hear who is woken; there is no broker."""
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(flush, "kick", lambda outbox, alias: heard.append((outbox.__name__, alias)))
    return heard


def sql(text: str, params: Any = None) -> None:
    with connections[US].cursor() as cursor:
        cursor.execute(text, params)


def told(number: int, box: int = 1, name: str | None = "") -> tuple[Any, ...]:
    return (9120, box, 9120, number, {"name": name, "box_id": box})


def bead(number: int, box: int = 1, **fields: Any) -> Bead:
    return Bead.objects.create(id=number, box_id=box, **fields)  # type: ignore[no-any-return]


def test_a_save_writes_one_message_with_the_named_columns(kicks: list[Any]) -> None:
    with recorded() as seen:
        made = bead(1, name="a")
        made.name = "b"
        made.save()
        Bead(id=1, box_id=1, name="raw").save_base(raw=True)
        made.update(name="c")
        made.delete()
    named = [told(1, name=name) for name in ("a", "b", "raw", "c", "c")]
    assert (seen, kicks) == (named, [("CellOutbox", US)] * 5)


def test_a_save_costs_the_statements_of_a_plain_save() -> None:
    def statements(model: Any) -> int:
        with CaptureQueriesContext(connections[US]) as queries:
            made = model.objects.create(box_id=1)
            made.save()
            model.objects.filter(pk=made.pk).update(box_id=2)
            model.objects.bulk_create([model(box_id=1), model(box_id=2)])
            made.delete()
        return len(queries)

    assert statements(Bead) == statements(Plain)


def test_bulk_operations_write_one_message_for_each_row() -> None:
    with recorded() as seen:
        Bead.objects.bulk_create([Bead(id=n, box_id=1) for n in (3, 1, 2)])
    assert seen == [told(n) for n in (3, 1, 2)]
    with recorded() as seen:
        rows = [Bead(id=n, box_id=1, name="x") for n in (1, 2)]
        Bead.objects.bulk_update(rows, ["name"])
    assert seen == [told(n, name="x") for n in (1, 2)]
    with recorded() as seen:
        Bead.objects.filter(id__lt=3).update(name="y")
    assert seen == [told(n, name="y") for n in (1, 2)]
    with recorded() as seen:
        Bead.objects.bulk_create(
            [Bead(id=1, box_id=1), Bead(id=4, box_id=1)], ignore_conflicts=True
        )
    assert seen == [told(4)]
    with recorded() as seen:
        Bead.objects.bulk_delete([Bead(id=1)])
        Bead.objects.filter(id__gt=2).delete()
    assert seen == [told(1, name="y"), told(3), told(4)]


def test_an_upsert_tells_what_is_new_and_what_changed() -> None:
    bead(1)
    with recorded() as seen:
        Bead.objects.bulk_create(
            [Bead(id=1, box_id=1, name="n"), Bead(id=2, box_id=1, name="n")],
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=["name"],
        )
    assert sorted(seen, key=lambda row: row[3]) == [told(1, name="n"), told(2, name="n")]


@pytest.mark.parametrize("relation", ["shelf", "base"])
def test_cascades_write_one_message_for_each_row_that_goes(relation: str) -> None:
    shelf = Shelf()
    shelf.save()
    for number in (1, 2):
        related: dict[str, Any] = {relation: shelf}
        bead(number, 1, **related)
    with recorded() as seen:
        shelf.delete()
    assert seen == [told(1), told(2)]
    assert not Bead.objects.exists()


def test_raw_statements_write_one_message_for_each_row() -> None:
    with recorded() as seen:
        sql(
            "INSERT INTO zoo_bead (id, box_id, name, data) VALUES (1, 1, '', '{}'), (2, 1, '', '{}')"
        )
    assert seen == [told(1), told(2)]
    with recorded() as seen:
        sql("UPDATE zoo_bead SET name = 'r'")
    assert seen == [told(1, name="r"), told(2, name="r")]
    with recorded() as seen:
        sql("DELETE FROM zoo_bead")
    assert seen == [told(1, name="r"), told(2, name="r")]


def test_a_session_without_a_search_path_writes_messages_too() -> None:
    with recorded() as seen, transaction.atomic(using=US):
        sql("SET LOCAL search_path TO ''")
        sql("INSERT INTO public.zoo_bead (id, box_id, name, data) VALUES (1, 1, '', '{}')")
        sql("UPDATE public.zoo_bead SET name = 'x'")
        sql("DELETE FROM public.zoo_bead")
        sql("SET LOCAL search_path TO public")
    assert seen == [told(1), told(1, name="x"), told(1, name="x")]


def test_messages_come_in_the_order_of_the_ids_but_for_new_rows_in_their_own() -> None:
    with recorded() as seen:
        sql(
            "INSERT INTO zoo_bead (id, box_id, name, data) SELECT n, 1, '', '{}' FROM unnest(%s) n",
            [[3, 1, 2]],
        )
    assert seen == [told(n) for n in (3, 1, 2)]
    sql("UPDATE zoo_bead SET name = 'b' WHERE id = 1")  # its row is behind the others' now
    with recorded() as seen:
        sql("UPDATE zoo_bead SET name = 'c'")
    assert seen == [told(n, name="c") for n in (1, 2, 3)]
    with recorded() as seen:
        sql("DELETE FROM zoo_bead")
    assert seen == [told(n, name="c") for n in (1, 2, 3)]


def test_a_copy_writes_one_message_for_each_row() -> None:
    connections[US].ensure_connection()
    raw: Any = connections[US].connection
    with recorded() as seen, raw.cursor() as cursor:
        with cursor.copy("COPY zoo_bead (id, box_id, name, data) FROM STDIN") as copy:
            for number in (7, 8):
                copy.write_row((number, 1, "", "{}"))
        raw.commit() if not raw.autocommit else None
    assert seen == [told(7), told(8)]


def test_rows_that_did_not_change_are_left_out() -> None:
    first = bead(1, data={"a": 1})
    bead(2)
    with recorded() as seen:
        first.save()
        sql("UPDATE zoo_bead SET name = CASE id WHEN 2 THEN 'new' ELSE name END")
        Bead.objects.filter(id=99).update(name="nobody")
    assert seen == [told(2, name="new")]
    with recorded() as seen:
        sql("""UPDATE zoo_bead SET data = '{"a": 2}' WHERE id = 1""")
    assert seen == [told(1)]


def test_a_row_that_moves_is_told_in_both_shards() -> None:
    bead(1)
    with recorded() as seen:
        Bead.objects.update(box_id=5)
    left = (9120, 1, 9120, 1, {"name": "", "box_id": 5})
    assert seen == [left, told(1, box=5)]


def test_a_primary_key_that_changes_is_a_row_gone_and_a_row_new() -> None:
    bead(1)
    with recorded() as seen:
        sql("UPDATE zoo_bead SET id = 9")
    assert seen == [told(1), told(9)]


def test_what_rolls_back_leaves_no_message_and_wakes_nobody(kicks: list[Any]) -> None:
    with recorded() as seen, rolled_back(transaction.atomic(using=US)):
        bead(1)
    assert seen == []
    assert kicks == []


def test_a_transaction_wakes_a_drainer_once_and_flush_false_never(kicks: list[Any]) -> None:
    with transaction.atomic(using=US):
        bead(1)
        bead(2)
    assert kicks == [("CellOutbox", US)]
    with outbox_context(transaction.atomic(using=US), flush=False):
        bead(3)
    assert len(kicks) == 1


def test_partitions_write_once_whichever_table_is_named() -> None:
    with recorded() as seen:
        sql("INSERT INTO zoo_part (id, box_id) VALUES (1, 1), (2, 150)")
        sql("INSERT INTO zoo_part_low (id, box_id) VALUES (3, 2)")
        sql("DELETE FROM zoo_part_high")
    assert [(row[1], row[3]) for row in seen] == [(1, 1), (150, 2), (2, 3), (150, 2)]
    with recorded() as seen:
        sql("UPDATE zoo_part SET box_id = 160 WHERE id = 1")
    assert [(row[1], row[3]) for row in seen] == [(1, 1), (160, 1)]
    with pytest.raises(ProgrammingError, match="TRUNCATE of zoo_part_low"):
        sql("TRUNCATE zoo_part_low")


def test_truncate_is_refused_unless_it_is_allowed() -> None:
    bead(1)
    with pytest.raises(ProgrammingError, match="TRUNCATE of zoo_bead"):
        sql("TRUNCATE zoo_bead")
    assert Bead.objects.count() == 1
    with transaction.atomic(using=US):
        sql("SET LOCAL hybridcloud.truncate = 'allowed'")
        sql("TRUNCATE zoo_bead")
    assert not Bead.objects.exists()


def test_the_causation_of_a_handler_is_in_the_headers_of_its_changes_alone() -> None:
    cause = causation.Causation("c", 2, ("A", "B"))
    with causation.inside(cause):
        bead(1)
    with transaction.atomic(using=US):
        with causation.inside(cause):
            Bead.objects.filter(id=1).update(name="x")
        bead(2)
    headers = CellOutbox.objects.order_by("id").values_list("headers", flat=True)
    assert list(headers) == [cause.as_headers(), cause.as_headers(), None]


def test_a_backfill_would_say_what_the_triggers_say() -> None:
    with recorded() as seen:
        made = bead(1, name="a")
    assert made.outbox_for_update().payload == seen[0][-1]


def test_installing_again_changes_nothing() -> None:
    with CaptureQueriesContext(connections[US]) as queries:
        install(US, [Bead, Part])
    assert all(each["sql"].split()[0] == "SELECT" for each in queries.captured_queries)
    assert differences(Bead, US) == differences(Part, US) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP TRIGGER {insert} ON zoo_bead", "is missing"),
        ("ALTER TABLE zoo_bead DISABLE TRIGGER {update}", "is disabled"),
        (
            (
                "CREATE OR REPLACE FUNCTION {delete}() RETURNS trigger LANGUAGE plpgsql "
                "AS 'BEGIN RETURN NULL; END'"
            ),
            "another body",
        ),
        (
            (
                "CREATE TRIGGER hybridcloud_outbox_insert_old AFTER INSERT ON zoo_bead "
                "FOR EACH STATEMENT EXECUTE FUNCTION {truncate}()"
            ),
            "of another version",
        ),
    ],
)
def test_the_check_finds_what_differs_and_installing_heals_it(
    damage: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "triggered_models", lambda _: [Bead])
    assert checking.check_triggers(None, databases=[US]) == []
    sql(damage.format(**{trigger.event: trigger.name for trigger in triggers_of(Bead)}))
    [warning] = checking.check_triggers(None, databases=[US])
    assert warning.id == "hybridcloud.W044"
    assert said in warning.msg
    install(US, [Bead])
    assert checking.check_triggers(None, databases=[US]) == []
    with recorded() as seen:
        bead(1).delete()
    assert seen == [told(1), told(1)]


def test_a_table_that_went_to_another_schema_is_found_and_installing_follows_it() -> None:
    with transaction.atomic(using=US):
        sql("CREATE SCHEMA elsewhere")
        sql("ALTER TABLE hybridcloud_celloutbox SET SCHEMA elsewhere")
        sql("SET LOCAL search_path TO public, elsewhere")
        assert any("another body" in each for each in differences(Bead, US))
        install(US, [Bead])
        with recorded() as seen:
            bead(1)
        assert seen == [told(1)]
        transaction.set_rollback(True, using=US)


def test_a_save_that_another_class_left_out_wakes_nobody(
    kicks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "save", lambda *_, **__: None)
    Bead(id=1, box_id=1).save()
    assert kicks == []


def test_the_triggers_of_a_model_that_left_the_mode_are_dropped(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "cron"}
    with monkeypatch.context() as patched:
        patched.setattr(Bead, "outbox_via", "mixin")
        install(US, [Bead])
        assert differences(Bead, US, expected=()) == []
        with recorded() as seen:
            bead(1)
        assert len(seen) == 1
    install(US, [Bead])
    assert differences(Bead, US) == []


def test_a_migrate_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(checking, "install", asked.append)
    call_command("migrate", "hybridcloud", database=US, verbosity=0, interactive=False)
    assert asked == [US]


def test_a_model_of_control_is_refused_by_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "producing_models", lambda: (Bead, Part, Coin))
    [error] = checking.check_models(None)
    assert (error.id, error.obj) == ("hybridcloud.E045", Coin)
    assert "which cells to tell" in error.msg


def test_payloads_that_only_python_makes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bead, "payload_for_update", lambda _: None)
    assert "trigger_payload" in str(problem_of(Bead))
    monkeypatch.undo()
    monkeypatch.setattr(Bead, "trigger_payload", ("nobody",))
    assert "'nobody'" in str(problem_of(Bead))


def test_a_write_fails_when_its_message_cannot_be_written() -> None:
    sql("ALTER TABLE hybridcloud_celloutbox RENAME TO away")
    try:
        with pytest.raises(ProgrammingError, match="hybridcloud_celloutbox"):
            bead(1)
    finally:
        sql("ALTER TABLE away RENAME TO hybridcloud_celloutbox")
    assert not Bead.objects.exists()
