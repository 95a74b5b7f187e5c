"""In trigger mode a change in control reaches each cell that must hear of it, whatever path it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from hybridcloud.outbox import CellMapping, ControlOutbox
from hybridcloud.outbox.deliver import flush
from hybridcloud.outbox.triggers.bodies import problem_of, triggers_of
from hybridcloud.outbox.triggers.install import differences, install
from hybridcloud.outbox.write.messages import produce
from hybridcloud.testutils import override_cells
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .trigger_zoo import CONTROL_TABLES, Coin, Place, Plain, Seal, Stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)
CONTROL = "control"


@pytest.fixture(scope="module", autouse=True)
def _tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connections[CONTROL].schema_editor() as editor:
            for model in CONTROL_TABLES:
                editor.create_model(model)
        install(CONTROL, [Stamp, Seal])
        yield
        with connections[CONTROL].schema_editor() as editor:
            for model in reversed(CONTROL_TABLES):
                editor.delete_model(model)
            for trigger in (*triggers_of(Stamp), *triggers_of(Seal)):
                editor.execute(f"DROP FUNCTION IF EXISTS {trigger.name}")


@pytest.fixture(autouse=True)
def _in_control(_tables: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flush, "kick", lambda _outbox, _alias: None)
    with assume_silo(SiloMode.CONTROL):
        sql("DELETE FROM zoo_stamp; DELETE FROM zoo_seal; DELETE FROM zoo_place")
        sql(
            "INSERT INTO zoo_place (user_id, cell_name) VALUES (1, 'us'), (1, 'us'), (2, 'us'), (2, 'eu')"
        )
        ControlOutbox.objects.all().delete()
        yield


def sql(text: str, params: Any = None) -> None:
    with connections[CONTROL].cursor() as cursor:
        cursor.execute(text, params)


def told() -> list[tuple[str, int, int, Any]]:
    """Return (cell, shard, object, payload) of the messages since the last call, by id."""
    rows = ControlOutbox.objects.order_by("id")
    found = list(rows.values_list("cell_name", "shard_identifier", "object_identifier", "payload"))
    rows.delete()
    return found


def test_all_cells_hear_of_every_change() -> None:
    stamp = Stamp.objects.create(id=7, organization_id=3)
    assert told() == [("eu", 3, 7, None), ("us", 3, 7, None)]
    stamp.save()
    assert told() == []  # nothing in it changed
    sql("UPDATE zoo_stamp SET organization_id = 4")
    assert told() == [
        ("eu", 3, 7, None),
        ("us", 3, 7, None),
        ("eu", 4, 7, None),
        ("us", 4, 7, None),
    ]
    sql("DELETE FROM zoo_stamp")
    assert told() == [("eu", 4, 7, None), ("us", 4, 7, None)]


def test_the_mapping_tells_who_hears_of_a_row() -> None:
    Seal.objects.bulk_create([Seal(id=n, user_id=n, name="a") for n in (1, 2, 3)])
    assert told() == [
        ("us", 1, 1, {"name": "a"}),
        ("eu", 2, 2, {"name": "a"}),
        ("us", 2, 2, {"name": "a"}),
    ]
    Seal.objects.filter(id__lt=3).update(name="b")
    assert told() == [
        ("us", 1, 1, {"name": "b"}),
        ("eu", 2, 2, {"name": "b"}),
        ("us", 2, 2, {"name": "b"}),
    ]


def test_all_cells_hear_of_a_deletion_and_of_a_row_that_leaves_its_shard() -> None:
    Seal.objects.create(id=1, user_id=2)
    told()
    sql("DELETE FROM zoo_place")
    sql("UPDATE zoo_seal SET user_id = 5, name = 'moved'")
    assert told() == [("eu", 2, 1, {"name": "moved"}), ("us", 2, 1, {"name": "moved"})]
    Seal.objects.all().delete()
    assert told() == [("eu", 5, 1, {"name": "moved"}), ("us", 5, 1, {"name": "moved"})]


def test_cells_that_a_row_leaves_inside_its_shard_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Seal, "trigger_cells", CellMapping(Place, match="name", on="cell_name"))
    install(CONTROL, [Seal])
    try:
        Seal.objects.create(id=1, user_id=1, name="us")
        told()
        Seal.objects.update(name="eu")
        assert told() == [("us", 1, 1, {"name": "eu"}), ("eu", 1, 1, {"name": "eu"})]
    finally:
        monkeypatch.undo()
        install(CONTROL, [Seal])


def test_a_backfill_tells_the_cells_that_the_triggers_tell() -> None:
    sql("INSERT INTO zoo_seal (id, user_id, name) VALUES (1, 1, 'a'), (2, 2, 'b')")
    sql("INSERT INTO zoo_stamp (id, organization_id) VALUES (9, 3)")
    by_triggers = told()
    for model in (Seal, Stamp):
        produce(model, model.objects.order_by("id"), using=CONTROL, flush=False)
    assert told() == by_triggers
    assert len(by_triggers) == 5


def test_migrate_brings_another_directory_into_the_triggers() -> None:
    assert differences(Stamp, CONTROL) == []
    with override_cells("us", "eu", "ap"):
        assert any("is missing" in each for each in differences(Stamp, CONTROL))
        install(CONTROL, [Stamp])
        assert differences(Stamp, CONTROL) == []
        Stamp.objects.create(id=1, organization_id=1)
    assert [cell for cell, *_ in told()] == ["ap", "eu", "us"]
    install(CONTROL, [Stamp])


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (None, "trigger_cells does not say which cells"),
        ("All", "neither 'all' nor a CellMapping"),
        (CellMapping("zoo.Missing", match="user_id"), "names a model or column"),
        (CellMapping(Place, match="colour"), "names a model or column"),
        (CellMapping(Place, match="user_id", cell="colour"), "names a model or column"),
        (CellMapping(Plain, match="user_id", on="box_id", cell="id"), "not a table of control"),
    ],
)
def test_what_tells_no_cells_is_refused(
    cells: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seal, "trigger_cells", cells)
    assert why in str(problem_of(Seal))


def test_cells_told_by_python_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coin, "trigger_cells", "all")
    assert problem_of(Coin) is None
    monkeypatch.setattr(Coin, "outbox_cell_names", lambda _self: ["us"])
    assert "outbox_cell_names() is Python" in str(problem_of(Coin))
