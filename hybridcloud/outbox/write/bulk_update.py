"""Changes many rows and writes their messages: `QuerySet.update`.

Where SQL can make the messages, change and messages are one statement. Where
Python must, the rows are locked first and exactly those are changed: rows that
come to match in between are neither changed nor forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import connections, models, transaction

from hybridcloud.errors import OutboxError
from hybridcloud.outbox.declare.identifiers import shard_path
from hybridcloud.outbox.declare.scope import find_scope
from hybridcloud.outbox.write.after_commit import announce
from hybridcloud.outbox.write.context import joined_context, write_buffered, write_messages
from hybridcloud.outbox.write.messages import is_triggered, produce, triggered
from hybridcloud.outbox.write.one_statement import scope_for_sql
from hybridcloud.outbox.write.sink import Sink, attach

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.mixins import ProducingModel
    from hybridcloud.outbox.write.querysets import ProducingQuerySet

# Bounds the memory for instances and their messages.
_MOST_PKS: Final = 10_000


def update(queryset: ProducingQuerySet[Any], fields: dict[str, Any]) -> int:
    """Change rows and write the messages about them; return how many matched."""
    model: type[ProducingModel] = queryset.model
    keys = {name for field in model._meta.pk_fields for name in (field.name, field.attname)}
    if not keys.isdisjoint(fields) or "pk" in fields:
        raise OutboxError(
            f"Primary key in update() of {model._meta.label}: its messages are about an object "
            f"that keeps its id. Delete the row and make another one."
        )
    if is_triggered(model):
        with triggered(model, queryset.db, None):
            return models.QuerySet.update(queryset, **fields)
    scope = scope_for_sql(model)
    if scope is not None and not _moves(model, scope, fields):
        return _together(queryset, scope, fields)
    return _locked(queryset, fields)


def update_instance(instance: ProducingModel, fields: dict[str, Any], *, using: str) -> int:
    """Set fields of an instance and its row; return how many rows changed."""
    for field in instance._meta.concrete_fields:
        if getattr(field, "auto_now", False) and field.name not in fields:
            fields[field.name] = field.pre_save(instance, add=False)
    rows = type(instance).outbox_rows.using(using).filter(pk=instance.pk).update(**fields)
    computed = [name for name, value in fields.items() if hasattr(value, "resolve_expression")]
    for name, value in fields.items():
        if name not in computed:
            setattr(instance, name, value)
    # Only the database knows what its expressions came to, and what it computes of other columns.
    computed += [field.name for field in instance._meta.concrete_fields if field.generated]
    if computed and rows:
        instance.refresh_from_db(using=using, fields=computed)
    return rows


def _moves(model: type[ProducingModel], scope: OutboxScope, fields: Collection[str]) -> bool:
    """Say whether setting these fields may take a row to another shard."""
    first = (shard_path(scope, model) or "").split(".", 1)[0]
    # A key never changes; of a relation, both names may be set.
    if first in ("", "pk"):
        return False
    pairs = [{field.name, field.attname} for field in model._meta.concrete_fields]
    names = {first}.union(*(pair for pair in pairs if first in pair))
    return not names.isdisjoint(fields)


def _together(queryset: ProducingQuerySet[Any], scope: OutboxScope, fields: dict[str, Any]) -> int:
    """Change rows and write their messages in one statement."""
    model: type[ProducingModel] = queryset.model
    connection = connections[queryset.db]
    # What is buffered is older, so it must have lower ids.
    write_buffered(connection)
    sink = Sink(model, scope, one_row=False, flush=None)
    carrying = queryset.all()
    attach(carrying.query, sink)
    # A change that went past the sink must not commit.
    with transaction.mark_for_rollback_on_error(using=queryset.db):
        count = models.QuerySet.update(carrying, **fields)
        sink.close(changed=count > 0)
    if sink.batch is not None:
        announce(connection, sink.batch)
    return count


def _locked(queryset: ProducingQuerySet[Any], fields: dict[str, Any]) -> int:
    """Lock rows, change exactly these, and write their messages."""
    model: type[ProducingModel] = queryset.model
    using, changed = queryset.db, 0
    with joined_context(using, flush=model.default_flush):
        # In the order of the ids: two such updates wait for one another, and never in a circle.
        pks = list(_lockable(queryset).order_by("pk").values_list("pk", flat=True))
        for start in range(0, len(pks), _MOST_PKS):
            chunk = pks[start : start + _MOST_PKS]
            rows = model.outbox_rows.using(using).filter(pk__in=chunk).order_by("pk")
            # Only messages made before the change name the shard that a row leaves.
            before = {each.pk: each.messages() for each in rows} if _may_move(rows, fields) else {}
            changed += models.QuerySet.update(queryset.filter(pk__in=chunk), **fields)
            after = list(rows.all())
            produce(model, after, using=using)
            if before:
                write_messages(_left_behind(before, after), using=using, flush=model.default_flush)
    return changed


def _lockable(queryset: ProducingQuerySet[Any]) -> models.QuerySet[Any]:
    """Return a query that PostgreSQL can lock: no joins, groups, DISTINCT."""
    query, base = queryset.query, queryset.order_by()
    tables = sum(1 for count in query.alias_refcount.values() if count)
    if tables > 1 or query.group_by is not None or query.distinct or query.annotations:
        model: type[ProducingModel] = queryset.model
        # Django's own update does the same with a query of several tables.
        rows = model.outbox_rows.using(queryset.db).filter(pk__in=base.values("pk"))
        return rows.select_for_update(of=("self",))
    return base.select_for_update()


def _may_move(rows: models.QuerySet[Any], fields: Collection[str]) -> bool:
    """Say whether setting these fields may take the rows to other shards."""
    model: type[ProducingModel] = rows.model
    if model.has_default_messages():
        return _moves(model, model.category.get_scope(), fields)
    # Only its messages know the scope of a model that makes them itself.
    first = rows.first()
    scopes = {message.shard_scope for message in ([] if first is None else first.messages())}
    return any(
        _moves(model, scope, fields) for scope in map(find_scope, scopes) if scope is not None
    )


def _left_behind(
    before: dict[Any, list[OutboxTable]], after: Sequence[ProducingModel]
) -> list[OutboxTable]:
    """Return messages for the shards that rows left."""
    left: list[OutboxTable] = []
    for instance in after:
        now = instance.messages()
        shards = {message.shard_key() for message in now}
        for message in before.get(instance.pk, []):
            if message.shard_key() not in shards:
                # The old shard is told what is true now, like the new one.
                if now:
                    message.payload = now[0].payload
                left.append(message)
    return left
