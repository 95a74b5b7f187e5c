"""Row and message are of one transaction, whatever wrappers make of Django's SQL.

The kinds of wrappers: a comment in front, behind, a statement in front, one before each statement,
one that raises behind, one that swallows. The kinds of writes: create, save, save of chosen fields,
update(), instance.update(), bulk_create, bulk_update, a cascade that sets NULL, get_or_create,
loaddata's own. Each alone and in a block. The kinds of tables: quoted, in another schema.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from django.core.serializers.base import DeserializedObject
from django.db import connections, models, transaction
from django.db.models import Value
from django.test.utils import CaptureQueriesContext

from fixtures.acme.categories import Category
from fixtures.acme.factories import create_organization, create_project, create_team
from hybridcloud.errors import OutboxError
from hybridcloud.outbox import outbox_context
from hybridcloud.outbox.write import sink
from hybridcloud.outbox.write.querysets import ProducingQuerySet

from .conftest import ALIASES
from .engine import US, Kind, drain_us, ids, listening, put
from .writing import recorded, rolled_back
from .zoo import Animal, Beast, Label, Pen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=ALIASES),
    pytest.mark.usefixtures("unflushed_us", "zoo"),
]


def _comment(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    return execute(f"/* view=x */ {sql}", params, many, context)


def _comment_behind(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    return execute(f"{sql} /* view=x */", params, many, context)


def _line(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    return execute(f"-- view=x; INSERT\n{sql}", params, many, context)


def _setting(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    # Django itself reads the first result, but for what changes rows and returns none.
    if sql.startswith(("UPDATE", "WITH hc_row")) or (
        sql.startswith("INSERT") and " RETURN" not in sql
    ):
        sql = f"SELECT set_config('app.user', '7', true); {sql}"
    return execute(sql, params, many, context)


def _before_each(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    with context["connection"].connection.cursor() as raw:
        raw.execute("SELECT set_config('app.user', '7', false)")
    return execute(sql, params, many, context)


WRAPPERS: dict[str, Any] = {
    "none": None,
    "a comment in front": _comment,
    "a comment behind": _comment_behind,
    "a line comment": _line,
    "a statement in front": _setting,
    "a statement before each": _before_each,
}


_keys = count(1_000_000)
"""The zoo's tables are not emptied between tests."""


def _saved(name: str = "x") -> Pen:
    with connections[US].cursor() as cursor:
        cursor.execute("INSERT INTO zoo_pen (name) VALUES (%s) RETURNING id", [name])
        return Pen.objects.get(pk=cursor.fetchone()[0])


def _create() -> list[models.Model]:
    return [Pen.objects.create(name="a")]


def _resave() -> list[models.Model]:
    pen = _saved()
    pen.name = "b"
    pen.save()
    return [pen]


def _chosen() -> list[models.Model]:
    pen = _saved()
    pen.save(update_fields=["name"])
    return [pen]


def _update() -> list[models.Model]:
    pens = [_saved(), _saved()]
    Pen.objects.filter(pk__in=[each.pk for each in pens]).update(name="b")
    return list(pens)


def _update_one() -> list[models.Model]:
    pen = _saved()
    pen.update(name="b")
    return [pen]


def _bulk_create() -> list[models.Model]:
    return list(Pen.objects.bulk_create([Pen(), Pen()]))


def _bulk_update() -> list[models.Model]:
    pens = [_saved(), _saved()]
    Pen.objects.bulk_update(pens, ["name"])
    return list(pens)


def _get_or_create() -> list[models.Model]:
    return [Pen.objects.get_or_create(name=f"new {next(_keys)}")[0]]


def _update_or_create() -> list[models.Model]:
    pen = _saved(f"old {next(_keys)}")
    return [Pen.objects.update_or_create(name=pen.name, defaults={"name": "y"})[0]]


def _deserialized() -> list[models.Model]:
    # A row that exists: of one that does not, Django reads the wrong result with a statement in front.
    pen = _saved()
    DeserializedObject(pen).save(using=US)
    return [pen]


def _save_base() -> list[models.Model]:
    pen = _saved()
    pen.save_base(raw=True)
    return [pen]


def _unbound_save() -> list[models.Model]:
    pen = _saved()
    models.Model.save(pen)
    return [pen]


WAYS: dict[str, Callable[[], list[models.Model]]] = {
    "create": _create,
    "save": _resave,
    "save of chosen fields": _chosen,
    "update": _update,
    "update of an instance": _update_one,
    "bulk_create": _bulk_create,
    "bulk_update": _bulk_update,
    "get_or_create": _get_or_create,
    "update_or_create": _update_or_create,
    "deserialized": _deserialized,
    "save_base": _save_base,
    "another class's save": _unbound_save,
}


@contextmanager
def _nested() -> Iterator[None]:
    with transaction.atomic(using=US), transaction.atomic(using=US):
        yield


BLOCKS: dict[str, Callable[[], Any]] = {
    "alone": nullcontext,
    "in a block": lambda: transaction.atomic(using=US),
    "in a savepoint": _nested,
    "in a context": lambda: outbox_context(transaction.atomic(using=US), flush=False),
}


def _wrapped(name: str) -> Any:
    wrapper = WRAPPERS[name]
    return nullcontext() if wrapper is None else connections[US].execute_wrapper(wrapper)


def _same_transaction(rows: list[models.Model]) -> None:
    """Check that each row and its newest message are of one transaction."""
    with connections[US].cursor() as cursor:
        for row in rows:
            cursor.execute(
                "SELECT r.xmin = m.xmin FROM zoo_pen r LEFT JOIN hybridcloud_celloutbox m"
                " ON m.object_identifier = r.id AND m.category = %s"
                " WHERE r.id = %s ORDER BY m.id DESC LIMIT 1",
                [Beast.PEN.value, row.pk],
            )
            assert cursor.fetchall() == [(True,)], row


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("way", WAYS)
def test_each_row_has_its_message_in_its_transaction(way: str, wrapper: str) -> None:
    for block, enter in BLOCKS.items():
        with recorded() as made, _wrapped(wrapper), enter():
            rows = WAYS[way]()
        assert [each[3] for each in made] == [row.pk for row in rows], block
        # A savepoint has a number of its own.
        if block != "in a savepoint" and not (
            block == "in a context" and way.endswith("or_create")
        ):
            _same_transaction(rows)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_cascade_that_sets_null_tells_of_its_rows(wrapper: str) -> None:
    team = create_team(org := create_organization(cell="us"))
    projects = [create_project(org, team=team) for _ in range(2)]
    with recorded() as made, _wrapped(wrapper):
        team.delete()
    told = sorted(each[3] for each in made if each[2] == Category.PROJECT_UPDATE)
    assert told == [each.pk for each in projects]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_savepoints_are_followed_whatever_is_in_front_of_them(wrapper: str) -> None:
    with (
        recorded() as made,
        _wrapped(wrapper),
        outbox_context(transaction.atomic(using=US), flush=False),
    ):
        kept = Pen.objects.create()
        with rolled_back(transaction.atomic(using=US)):
            Pen.objects.create()
        with transaction.atomic(using=US):
            later = Pen.objects.create()
    assert [each[3] for each in made] == [kept.pk, later.pk]


@pytest.mark.parametrize("text", ["/* x */ SAVEPOINT a", "-- x\n  SAVEPOINT a", 'savepoint "a"'])
def test_savepoints_of_ones_own_are_followed_behind_comments(text: str) -> None:
    back = text.replace("SAVEPOINT", "ROLLBACK TO SAVEPOINT").replace("savepoint", "rollback to")
    with (
        recorded() as made,
        outbox_context(transaction.atomic(using=US), flush=False),
        connections[US].cursor() as cursor,
    ):
        cursor.execute(text)
        Pen.objects.create()
        cursor.execute(back)
    assert made == []


@pytest.mark.parametrize("wrapper", [name for name, each in WRAPPERS.items() if each])
def test_drains_go_past_wrappers(wrapper: str) -> None:
    put(Kind.ORDERED, obj=1)
    put(Kind.ATOMIC, obj=2)
    put(Kind.ONCE, obj=3)
    seen_sql: list[str] = []

    def note(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        seen_sql.append(str(sql))
        return execute(sql, params, many, context)

    with (
        listening(Kind.ORDERED, Kind.ATOMIC, Kind.ONCE) as seen,
        connections[US].execute_wrapper(note),
        _wrapped(wrapper),
    ):
        drain_us()
    assert sorted(seen.objects) == [1, 2, 3]
    assert ids() == []
    assert [each for each in seen_sql if "hybridcloud_cell" in each] == []


def test_the_engines_statements_are_in_the_log_of_queries() -> None:
    put()
    with CaptureQueriesContext(connections[US]) as queries, listening(Kind.PLAIN):
        drain_us()
    assert any("hybridcloud_celllease" in each["sql"] for each in queries.captured_queries)


def test_a_wrapper_that_raises_behind_a_lone_save_leaves_row_and_message() -> None:
    def raises(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        execute(sql, params, many, context)
        raise LookupError("behind")

    with (
        recorded() as made,
        pytest.raises(LookupError),
        connections[US].execute_wrapper(raises),
    ):
        Pen.objects.create(name="raised")
    (pen,) = Pen.objects.filter(name="raised")
    assert [each[3] for each in made] == [pen.pk]
    _same_transaction([pen])


@pytest.mark.parametrize("way", ["create", "update"])
def test_a_wrapper_that_swallows_the_statement_is_an_error(way: str) -> None:
    def swallows(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if "hc_row" in sql:
            return execute("SELECT 1", None, many, context)
        return execute(sql, params, many, context)

    with (
        recorded() as made,
        connections[US].execute_wrapper(swallows),
        pytest.raises(OutboxError, match=r"^Messages not written: .* zoo\.Pen"),
    ):
        WAYS[way]()
    assert made == []


def test_a_queryset_with_a_compiler_of_its_own_keeps_its_messages() -> None:
    """Such as those that put a CTE in front of the UPDATE."""
    from django.db.models.sql.compiler import SQLUpdateCompiler
    from django.db.models.sql.subqueries import UpdateQuery

    class Compiler(SQLUpdateCompiler):
        def as_sql(self) -> Any:
            text, params = super().as_sql()
            return f"WITH cte AS (SELECT 1 AS one) {text}", params

    pen = _saved()
    original = UpdateQuery.get_compiler

    def get_compiler(self: Any, using: Any = None, connection: Any = None, **more: Any) -> Any:
        made = original(self, using, connection, **more)
        if type(made) is SQLUpdateCompiler:
            made.__class__ = Compiler
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UpdateQuery, "get_compiler", get_compiler)
        with recorded() as made:
            Pen.objects.filter(pk=pen.pk).update(name="z")
            pen.save()
    assert [each[3] for each in made] == [pen.pk, pen.pk]


def test_a_change_that_goes_past_its_compiler_is_an_error_and_rolled_back() -> None:
    pen = _saved()

    def raw(self: Any, *_: Any, **__: Any) -> int:
        with connections[US].cursor() as cursor:
            cursor.execute("UPDATE zoo_pen SET name = 'past' WHERE id = %s", [pen.pk])
            return int(cursor.rowcount)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.QuerySet, "update", raw)
        with (
            pytest.raises(OutboxError, match="did not carry them"),
            transaction.atomic(using=US),
        ):
            ProducingQuerySet(Pen, using=US).update(name="past")
    assert Pen.objects.get(pk=pen.pk).name == "x"


def test_a_table_in_another_schema_has_its_messages() -> None:
    def move(name: str, *statements: str) -> None:
        with connections[US].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        Pen._meta.db_table = name
        sink._texts.cache_clear()
        for field in Pen._meta.concrete_fields:
            field.__dict__.pop("cached_col", None)

    # By the quoting trick.
    move('apart"."zoo_pen', "CREATE SCHEMA apart", "ALTER TABLE zoo_pen SET SCHEMA apart")
    try:
        with recorded() as made:
            pen = Pen.objects.create(name="far")
            pen.save()
            Pen.objects.filter(name="far").update(name="farther")
    finally:
        move("zoo_pen", "ALTER TABLE apart.zoo_pen SET SCHEMA public", "DROP SCHEMA apart")
    assert [each[3] for each in made] == [pen.pk] * 3


def test_an_update_that_matches_nothing_writes_nothing() -> None:
    with recorded() as made:
        for rows in (Pen.objects.none(), Pen.objects.filter(pk__in=[]), Pen.objects.filter(pk=-1)):
            assert rows.update(name="x") == 0
    assert made == []


def test_an_update_by_an_expression_and_a_subquery_is_carried() -> None:
    pen = _saved()
    animal = Animal.objects.create(pen=pen, name="a")
    Label.objects.create(animal=animal)
    with recorded() as made:
        Pen.objects.filter(animals__id=animal.pk).update(name=Value("q"))
        mine = Animal.objects.filter(pk=animal.pk)
        Pen.objects.filter(pk__in=mine.values("pen")).update(name="r")
    assert [each[3] for each in made] == [pen.pk, pen.pk]
