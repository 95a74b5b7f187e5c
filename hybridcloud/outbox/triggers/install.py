"""Installs the triggers of a database's models, and finds what differs.

A model with ``outbox_via = "trigger"`` has a statement-level trigger for each of INSERT, UPDATE
and DELETE, with transition tables, and one that refuses TRUNCATE, on its table and on each
partition.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.db import connections, router, transaction

from hybridcloud.outbox.triggers.bodies import PREFIX, REFERENCING, Trigger, triggers_of
from hybridcloud.outbox.write.messages import is_triggered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.write.mixins import ProducingModel

_LOG = logging.getLogger(__name__)
_IS_USED: Final = "SELECT 1 FROM pg_trigger WHERE tgfoid = %s::regprocedure LIMIT 1"
_SCHEMAS: Final = """
    SELECT t.name, quote_ident(n.nspname) FROM unnest(%s::text[]) AS t(name)
    JOIN pg_class c ON c.oid = to_regclass(t.name) JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_TREE: Final = """
    SELECT oid::bigint, oid::regclass::text FROM pg_class
    WHERE oid = to_regclass(%s) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%s)))
    ORDER BY 1
"""
_INSTALLED: Final = """
    SELECT t.tgrelid::bigint, t.tgname, p.oid::regprocedure::text, p.prosrc, t.tgenabled IN ('O', 'A')
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = ANY(%s) AND NOT t.tgisinternal AND starts_with(t.tgname, %s)
"""


def triggered_models(alias: str) -> list[type[ProducingModel]]:
    """Return the models in trigger mode with a table on a database."""
    return [model for model in _models(alias) if is_triggered(model)]


def differences(
    model: type[ProducingModel], alias: str, *, expected: Sequence[Trigger] | None = None
) -> list[str]:
    """Say how a table's triggers differ from its model, if it exists."""
    connection = connections[alias]
    expected = triggers_of(model) if expected is None else expected
    wanted = {trigger.name: trigger for trigger in _located(connection, expected)}
    found: list[str] = []
    for table, installed in _tables(connection, model):
        found += [f"{name} is missing on {table}" for name in sorted(wanted.keys() - installed)]
        for name, (_, source, enabled) in sorted(installed.items()):
            if name not in wanted:
                found.append(f"{name} on {table} is of another version")
            elif source != wanted[name].body:
                found.append(f"{name} on {table} has another body")
            elif not enabled:
                found.append(f"{name} on {table} is disabled")
    return found


def install(alias: str, tables: Iterable[type[ProducingModel]] | None = None) -> None:
    """Make the triggers on a database what the models need.

    Triggers of models that left the mode are dropped, since their mixins write again. ``tables``
    are the models to look at; None: all producing models with a table there.
    """
    for model in _models(alias) if tables is None else tables:
        expected = triggers_of(model) if is_triggered(model) else ()
        if not differences(model, alias, expected=expected):
            continue
        if expected and (missing := _missing_columns(model, alias)):
            # Migrated backwards: triggers that name these columns would fail every write.
            _LOG.warning("No triggers for %s: no columns %s", model._meta.label, missing)
            continue
        with transaction.atomic(using=alias):
            _install(connections[alias], model, expected)


def _install(
    connection: BaseDatabaseWrapper, model: type[ProducingModel], expected: Sequence[Trigger]
) -> None:
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for trigger in _located(connection, expected):
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {quote(trigger.name)}() RETURNS trigger "
                f"LANGUAGE plpgsql AS $hybridcloud${trigger.body}$hybridcloud$"
            )
        names = {trigger.name for trigger in expected}
        stale: set[str] = set()
        for table, installed in _tables(connection, model):
            for trigger in expected:
                timing = "BEFORE" if trigger.event == "truncate" else "AFTER"
                if not installed.get(trigger.name, (None, None, False))[2]:
                    cursor.execute(
                        f"CREATE OR REPLACE TRIGGER {quote(trigger.name)} {timing} "
                        f"{trigger.event.upper()} ON {table} {REFERENCING[trigger.event]} "
                        f"FOR EACH STATEMENT EXECUTE FUNCTION {quote(trigger.name)}()"
                    )
                    # CREATE OR REPLACE leaves a disabled trigger disabled.
                    cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER {quote(trigger.name)}")
            for name in installed.keys() - names:
                cursor.execute(f"DROP TRIGGER {quote(name)} ON {table}")
                stale.add(installed[name][0])
        for function in sorted(stale):
            # A detached partition may still use it.
            cursor.execute(_IS_USED, [function])
            if cursor.fetchone() is None:
                cursor.execute(f"DROP FUNCTION {function}")


def _located(connection: BaseDatabaseWrapper, triggers: Sequence[Trigger]) -> list[Trigger]:
    """Return triggers with the schemas of a database's tables."""
    tables = {table for trigger in triggers for table in trigger.tables}
    with connection.cursor() as cursor:
        cursor.execute(_SCHEMAS, [sorted(tables)])
        schemas = dict(cursor.fetchall())
    return [trigger.located(schemas) for trigger in triggers]


def _models(alias: str) -> list[type[ProducingModel]]:
    every: list[Any] = [each for each in apps.get_models() if hasattr(each, "has_default_messages")]
    real = [each for each in every if each._meta.managed and not each._meta.proxy]
    return [model for model in real if router.allow_migrate_model(alias, model)]


def _tables(
    connection: BaseDatabaseWrapper, model: type[ProducingModel]
) -> list[tuple[str, dict[str, tuple[str, str, bool]]]]:
    """Return (name, installed triggers) of a model's table and partitions."""
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(_TREE, [table, table])
        tree = cursor.fetchall()
        installed: dict[int, dict[str, tuple[str, str, bool]]] = {oid: {} for oid, _ in tree}
        if tree:
            cursor.execute(_INSTALLED, [list(installed), PREFIX])
            for relation, name, function, source, enabled in cursor.fetchall():
                installed[relation][name] = (function, source, enabled)
    return [(name, installed[oid]) for oid, name in tree]


def _missing_columns(model: type[ProducingModel], alias: str) -> list[str]:
    inspect = connections[alias].introspection.get_table_description
    with connections[alias].cursor() as cursor:
        there = {column.name for column in inspect(cursor, model._meta.db_table)}
    return sorted({str(field.column) for field in model._meta.local_concrete_fields} - there)
