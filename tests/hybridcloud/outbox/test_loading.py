"""`loaddata`, deserialized objects and `save_base()` tell, too."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from django.core.serializers.base import DeserializedObject
from django.db import IntegrityError, connections, transaction

from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.write import one_statement

from .conftest import ALIASES
from .engine import US
from .writing import recorded, rolled_back
from .zoo import Animal, Beast, Bird, Cage, House, Label, Pen, Visit

if TYPE_CHECKING:
    from django.db import models

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=ALIASES),
    pytest.mark.usefixtures("unflushed_us", "zoo"),
]
_keys = count(2_000_000)


def _saved() -> Pen:
    with connections[US].cursor() as cursor:
        cursor.execute("INSERT INTO zoo_pen (name) VALUES ('x') RETURNING id")
        return Pen.objects.get(pk=cursor.fetchone()[0])


def test_an_update_of_an_instance_reads_what_the_database_computes() -> None:
    cage = Cage.objects.create(width=2)
    with recorded() as made:
        assert cage.update(width=3) == 1
    assert (cage.width, cage.area) == (3, 9)
    assert [each[3] for each in made] == [cage.pk]


def test_savepoints_are_followed_with_a_statement_in_front() -> None:
    def in_front(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        first = str(sql).partition(" ")[0]
        if first in ("SAVEPOINT", "RELEASE", "ROLLBACK"):
            sql = f"SELECT set_config('app.user', '7', true); {sql}"
        return execute(sql, params, many, context)

    with (
        recorded() as made,
        connections[US].execute_wrapper(in_front),
        outbox_context(transaction.atomic(using=US), flush=False),
    ):
        kept = Pen.objects.create()
        with rolled_back(transaction.atomic(using=US)):
            Pen.objects.create()
    assert [each[3] for each in made] == [kept.pk]


def test_what_a_keys_own_hook_writes_rolls_back_with_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = House.objects.count()

    def own(self: Any, instance: Any) -> Any:
        del self, instance
        with connections[US].cursor() as cursor:
            cursor.execute("INSERT INTO zoo_house DEFAULT VALUES RETURNING id")
            return cursor.fetchone()[0] + 3_000_000

    monkeypatch.setattr(type(Pen._meta.pk), "get_pk_value_on_save", own)
    one_statement._is_saved_by_django_alone.cache_clear()
    with connections[US].cursor() as cursor:
        cursor.execute(
            "ALTER TABLE hybridcloud_celloutbox ADD CONSTRAINT no_more CHECK (category < 0) NOT VALID"
        )
    try:
        with pytest.raises(IntegrityError):
            Pen(name="hooked").save()
    finally:
        with connections[US].cursor() as cursor:
            cursor.execute("ALTER TABLE hybridcloud_celloutbox DROP CONSTRAINT no_more")
        one_statement._is_saved_by_django_alone.cache_clear()
    assert House.objects.count() == before


class TestLoading:
    """`loaddata`, deserialized objects and `save_base()` tell, too."""

    def load(self, *rows: models.Model) -> None:
        for each in rows:
            DeserializedObject(each).save(using=US)

    def test_a_row_that_exists_is_told_of_again(self) -> None:
        pen = _saved()
        with recorded() as made:
            self.load(pen)
        assert [each[3] for each in made] == [pen.pk]

    def test_a_row_whose_message_python_makes_is_told_of(self) -> None:
        pen = _saved()
        animal, key = Animal.objects.create(pen=pen), next(_keys)
        with recorded() as made:
            self.load(Label(pk=key, animal=animal))
        assert [each[1:4] for each in made] == [(pen.pk, Beast.LABEL.value, key)]

    def test_both_tables_of_a_child_tell_of_one_object(self) -> None:
        bird = Bird.objects.create(pen=_saved())
        with recorded() as made:
            self.load(bird, Animal.objects.get(pk=bird.pk))
        assert {each[3] for each in made} == {bird.pk}

    def test_a_load_that_rolls_back_takes_its_messages_along(self) -> None:
        with recorded() as made, rolled_back(transaction.atomic(using=US)):
            self.load(Pen(pk=next(_keys)))
        assert made == []

    def test_a_row_that_cannot_be_told_of_is_not_loaded(self) -> None:
        key = next(_keys)
        with pytest.raises(Exception, match="pen"), transaction.atomic(using=US):
            self.load(Visit(pk=key, pen=None))
        assert not Visit.objects.filter(pk=key).exists()

    def test_a_row_that_a_hook_of_a_save_loads_is_told_of(self) -> None:
        from django.db.models.signals import pre_save

        key = next(_keys)

        def hook(**_: Any) -> None:
            self.load(Pen(pk=key))

        pre_save.connect(hook, sender=Animal)
        try:
            with recorded() as made:
                animal = Animal.objects.create(pen=_saved(), house=House.objects.create())
        finally:
            pre_save.disconnect(hook, sender=Animal)
        assert {each[2:4] for each in made} == {
            (Beast.PEN.value, key),
            (Beast.ANIMAL.value, animal.pk),
        }
