"""Deletions are carried over foreign keys between silos: in both orders, late commits too, in bounded batches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.apps.registry import Apps
from django.core.exceptions import FieldError
from django.db import connections, models, transaction
from django.forms import modelform_factory

from hybridcloud import options
from hybridcloud.redis import redis_client
from hybridcloud.testutils import override_options
from hybridcloud.tombstones import HybridCloudForeignKey, cascade
from hybridcloud.tombstones.cascade import (
    DISABLED,
    RETENTION,
    ForeignKey,
    foreign_keys,
    process_hybrid_cloud_foreign_key_cascade_batch,
    prune_tombstones,
)
from hybridcloud.tombstones.models import CellTombstone
from hybridcloud.tombstones.watermark import CascadeRecheck, CascadeWatermark
from silos import SiloMode, assume_silo, cell_silo_model
from tests.hybridcloud.outbox.engine import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)
US = "cell_us"


# An app registry of their own: these models are no part of acme, whose cascades must not see them.
own_apps = Apps()


@cell_silo_model
class Badge(models.Model):
    """Points at a user of control, and goes with it."""

    user = HybridCloudForeignKey("acme.User", on_delete="CASCADE")
    text = models.CharField(max_length=10, default="")

    class Meta:
        app_label = "acme"
        apps = own_apps
        db_table = "test_badge"


@cell_silo_model
class Note(models.Model):
    """Points at a user of control, and forgets it."""

    author_id = HybridCloudForeignKey("acme.User", on_delete="set_null", null=True)

    class Meta:
        app_label = "acme"
        apps = own_apps
        db_table = "test_note"


BADGES = ForeignKey(Badge, Badge._meta.get_field("user"))
NOTES = ForeignKey(Note, Note._meta.get_field("author_id"))


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Make the tables of this module's models in the cell us."""
    with assume_silo(SiloMode.CELL, cell="us"):
        with connections[US].schema_editor() as editor:
            editor.create_model(Badge)
            editor.create_model(Note)
        yield
        with connections[US].schema_editor() as editor:
            editor.delete_model(Badge)
            editor.delete_model(Note)


def run(key: ForeignKey = BADGES, **more: Any) -> int:
    """Do batches until there is no more; return how many."""
    count = 1
    while process_hybrid_cloud_foreign_key_cascade_batch(key, **more):
        count += 1
        assert count < 100
    return count


def bury(*users: int) -> None:
    """Record that users are gone from control."""
    for user in users:
        CellTombstone.record_delete("acme_user", user)


def badges() -> list[int]:
    return sorted(Badge.objects.values_list("user_id", flat=True))


def test_rows_of_before_go_when_their_target_goes() -> None:
    Badge.objects.bulk_create([Badge(user_id=n) for n in (1, 2, 3)])
    run()
    bury(2)
    run()
    assert badges() == [1, 3]


def test_rows_of_after_go_too() -> None:
    bury(2)
    run()
    Badge.objects.bulk_create([Badge(user_id=n) for n in (1, 2, 3)])
    CascadeRecheck.objects.all().delete()  # what the write noted; the walk of new rows must do
    run()
    assert badges() == [1, 3]


def test_set_null_empties_the_column_and_keeps_the_row() -> None:
    Note.objects.bulk_create([Note(author_id=n) for n in (1, 2)])
    bury(1)
    run(NOTES)
    assert sorted(Note.objects.values_list("author_id", flat=True), key=str) == [2, None]


def test_tombstones_of_other_tables_do_nothing() -> None:
    Badge.objects.create(user_id=1)
    CellTombstone.record_delete("acme_authprovider", 1)
    run()
    assert badges() == [1]


def test_batches_are_bounded_and_all_rows_go() -> None:
    Badge.objects.bulk_create([Badge(user_id=n % 10) for n in range(100)])
    bury(1, 2)
    assert run(batch_size=7) > 3
    assert len(badges()) == 80


def test_a_row_that_commits_late_behind_the_watermark_is_not_missed() -> None:
    """Two connections: the lower id is drawn first and committed last."""
    bury(7)
    run()
    inserted, commit = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic(using=US):
            Badge.objects.create(user_id=7, text="late")
            CascadeRecheck.objects.all().delete()
            inserted.set()
            assert commit.wait(20)

    with Worker(late):
        assert inserted.wait(20)
        Badge.objects.create(user_id=1, text="higher id")
        assert not process_hybrid_cloud_foreign_key_cascade_batch(BADGES)
        mark = CascadeWatermark.objects.get(walk="row", table="test_badge")
        assert mark.hi is not None, "it waits for who was writing"
        assert mark.writers
        commit.set()
    CascadeRecheck.objects.all().delete()
    run()
    assert badges() == [1]


def test_a_tombstone_that_commits_late_is_not_missed() -> None:
    Badge.objects.create(user_id=7)
    run()
    inserted, commit = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic(using=US):
            bury(7)
            inserted.set()
            assert commit.wait(20)

    with Worker(late):
        assert inserted.wait(20)
        bury(99)
        assert not process_hybrid_cloud_foreign_key_cascade_batch(BADGES)
        commit.set()
    run()
    assert badges() == []


NOT_SEEN = pytest.mark.skipif(
    django.VERSION < (6,),
    reason="Django 5.2 prepares the values of bulk_update() as for a filter; the daily rescan finds them",
)


@pytest.mark.parametrize("how", ["save", "queryset", pytest.param("bulk", marks=NOT_SEEN)])
def test_a_row_that_is_changed_to_point_at_what_is_gone_is_caught(how: str) -> None:
    first, second = Badge.objects.create(user_id=1), Badge.objects.create(user_id=2)
    bury(7)
    run()
    if how == "save":
        first.user_id = 7
        first.save()
    elif how == "queryset":
        Badge.objects.filter(pk=first.pk).update(user_id=7)
    else:
        first.user_id = second.user_id = 7
        Badge.objects.bulk_update([first], ["user"])
    assert CascadeRecheck.objects.count() == 1
    run()
    assert badges() == [2]
    assert CascadeRecheck.objects.count() == 0


def test_a_bulk_write_asks_for_its_tombstones_once(
    django_assert_max_num_queries: Any,
) -> None:
    rows = [Badge(user_id=n) for n in range(200)]
    with django_assert_max_num_queries(6, connection=connections[US]):
        Badge.objects.bulk_create(rows)


def test_what_no_other_way_has_seen_the_daily_rescan_finds() -> None:
    Badge.objects.create(user_id=1)
    bury(7)
    run()
    with connections[US].cursor() as cursor:
        cursor.execute("UPDATE test_badge SET user_id = 7")
    run()
    assert badges() == [7], "raw SQL behind the watermark"
    CascadeWatermark.objects.update(began_at="2020-01-01T00:00:00Z")
    run()
    run()
    assert badges() == []


def test_losing_the_watermarks_costs_a_walk_and_misses_nothing() -> None:
    Badge.objects.bulk_create([Badge(user_id=n) for n in (1, 2)])
    run()
    bury(1)
    CascadeWatermark.objects.all().delete()
    client = redis_client()
    assert client is not None
    client.flushdb()
    run()
    assert badges() == [2]


def test_the_position_is_shown_in_redis() -> None:
    Badge.objects.create(user_id=1)
    run()
    client = redis_client()
    assert client is not None
    newest = Badge.objects.latest("pk").pk
    assert client.get("row.test_badge.user") == f"[{newest}, null, []]"


def test_negative_ids_are_walked_too() -> None:
    Badge.objects.create(pk=-5, user_id=7)
    bury(7)
    run()
    assert badges() == []


def test_a_hook_can_take_its_time(settings: Any) -> None:
    settings.HYBRIDCLOUD = {
        **settings.HYBRIDCLOUD,
        "CASCADE_DELETE": "tests.hybridcloud.tombstones.hook.slowly",
    }
    Badge.objects.bulk_create([Badge(user_id=7) for _ in range(5)])
    bury(7)
    assert run() >= 3
    assert badges() == []


def test_the_switch_stops_cascades() -> None:
    Badge.objects.create(user_id=7)
    bury(7)
    with override_options({DISABLED: True}):
        run()
        assert badges() == [7]
    run()
    assert badges() == []


def test_tombstones_are_pruned_only_once_every_key_is_past_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [*foreign_keys(SiloMode.CELL), BADGES, NOTES]
    monkeypatch.setattr(cascade, "foreign_keys", lambda _: iter(keys))
    Badge.objects.create(user_id=1)
    bury(7)
    CellTombstone.objects.update(created_at="2020-01-01T00:00:00Z")
    with override_options({RETENTION: 30}):
        assert prune_tombstones(SiloMode.CELL) == 0, "no key has seen it"
        for key in keys[:-2]:
            run(key)
        run()
        assert prune_tombstones(SiloMode.CELL) == 0, "one key has not"
        Note.objects.create(author_id=1)
        run(NOTES)
        assert prune_tombstones(SiloMode.CELL) == 1
    assert options.get(RETENTION) == 90


def test_the_column_works_like_a_foreign_keys() -> None:
    row = Badge(user=7)
    assert (row.user, row.user_id) == (7, 7)
    row.save()
    assert Badge.objects.get(user=7) == Badge.objects.get(user_id=7) == row
    assert list(Badge.objects.values("user_id")) == [{"user_id": 7}]
    form = modelform_factory(Badge, fields=["user"])({"user": "9"}, instance=row)
    assert form.is_valid(), form.errors
    form.save()
    assert badges() == [9]
    with pytest.raises(FieldError):
        Badge.objects.filter(user__email="x").exists()


def test_a_migration_makes_the_field_as_it_was_declared() -> None:
    name, path, args, kwargs = Badge._meta.get_field("user").deconstruct()
    assert (name, args) == ("user", ["acme.User"])
    assert kwargs == {"on_delete": "CASCADE", "db_index": True}
    assert path.endswith("HybridCloudForeignKey")
    with connections[US].cursor() as cursor:
        names = connections[US].introspection.get_constraints(cursor, "test_badge")
    assert any(each["columns"] == ["user_id"] and each["index"] for each in names.values())


def declared(**options_: Any) -> list[str]:
    """Return the ids of the checks that a declaration fails."""
    target = options_.pop("to", "acme.User")
    field = HybridCloudForeignKey(target, **{"on_delete": "CASCADE", **options_})
    meta = type("Meta", (), {"app_label": "acme", "apps": Apps()})
    attributes = {"__module__": __name__, "Meta": meta, "other": field}
    made = cell_silo_model(type("Wrong", (models.Model,), attributes))
    return [str(each.id) for each in made._meta.get_field("other").check()]


def test_mistakes_in_a_declaration_are_refused_with_advice() -> None:
    assert declared() == []
    assert declared(to="acme.Organization") == ["hybridcloud.E007"]
    assert declared(to="acme.Nobody") == ["hybridcloud.E012"]
    assert declared(on_delete="SET_NULL") == ["hybridcloud.E013"]
    with pytest.raises(ValueError, match=r"^Unknown on_delete 'PROTECT'"):
        HybridCloudForeignKey("acme.User", on_delete="PROTECT")
