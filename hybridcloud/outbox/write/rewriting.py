"""Has the statement that changes rows write their messages too: without it each change would pay for a second one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

from django.db import models

from hybridcloud.causation import current_headers
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.declare.cell_mapping import quoted
from hybridcloud.outbox.declare.identifiers import shard_field
from hybridcloud.outbox.write.after_commit import WrittenRow
from hybridcloud.outbox.write.insert import as_json
from hybridcloud.outbox.write.messages import uses_default
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.store.tables import OutboxTable
    from hybridcloud.outbox.write.mixins import ProducingModel


def scope_for_sql(model: type[ProducingModel]) -> OutboxScope | None:
    """Return the scope, if SQL alone can make the model's messages: all they say is in two columns."""
    if (
        model.silo_mode is not SiloMode.CELL
        or not model.has_default_messages()
        or not uses_default(model, "payload_for_update")
        or _concrete(model)._meta.parents
    ):
        return None
    scope = model.category.get_scope()
    return scope if _has_both_columns(model, scope) else None


@cache
def _has_both_columns(model: type[ProducingModel], scope: OutboxScope) -> bool:
    shard = shard_field(scope, model)
    return (
        shard is not None
        and not shard.null
        and _is_integer(shard)
        and _is_integer(_concrete(model)._meta.pk)
    )


def _concrete(model: type[ProducingModel]) -> type[models.Model]:
    return cast("type[models.Model]", model._meta.concrete_model)


def _is_integer(field: Any) -> bool:
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    return isinstance(field, models.IntegerField)


class Rewriter(ABC):
    """Stands around Django's statements inside its block, and rewrites the one that changes rows of a model.

    Args:
        model: a model that has a `scope_for_sql`.
        scope: that scope.
        connection: where its rows are changed.

    Raises:
        InvalidOutboxError: the model's category is retired.
    """

    def __init__(
        self, model: type[ProducingModel], scope: OutboxScope, connection: BaseDatabaseWrapper
    ) -> None:
        validated_scope(scope.value, model.category.value)
        self.model = model
        self.scope = scope
        self.connection = connection
        self.outbox = model.outbox_model()
        self.table = quoted(model._meta.db_table)

    def __enter__(self) -> Self:
        self.connection.execute_wrappers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        # By name: `connection.execute_wrapper` takes away the last one, whosesoever it is.
        self.connection.execute_wrappers.remove(self)

    @abstractmethod
    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: dict[str, Any]
    ) -> Any:
        """Run a statement of Django's, rewritten or as it is."""

    def parts(self, sql: str, *, order: str = "") -> tuple[str, str]:
        """Return the rows' statement as a part of a WITH, and the INSERT of the messages about what it changed.

        The first gives what it gave before, and then the columns ``hc_object``
        and ``hc_shard``; the second the id, shard and object of each message.
        """
        columns, messages = _texts(self.model, self.scope, self.outbox, order)
        returning = "," if " RETURNING " in sql else " RETURNING"
        return f"WITH hc_row AS ({sql}{returning} {columns})", messages

    def values(self) -> tuple[Any, ...]:
        """Return the parameters of the INSERT."""
        headers = as_json(self.outbox, "headers", current_headers())
        return (self.scope.value, self.model.category.value, headers)

    def written(self, row: tuple[int, int, int]) -> WrittenRow:
        """Return the message of which the INSERT returned a row."""
        identifier, shard, about = row
        return WrittenRow(identifier, (self.scope.value, shard), self.model.category.value, about)


@cache
def _texts(
    model: type[ProducingModel], scope: OutboxScope, outbox: type[OutboxTable], order: str
) -> tuple[str, str]:
    """Return the columns that a message is made of, and its INSERT."""
    shard, pk, table = shard_field(scope, model), model._meta.pk, quoted(model._meta.db_table)
    columns = ", ".join(
        f"{table}.{quoted(str(field and field.column))} AS {name}"
        for field, name in ((pk, "hc_object"), (shard, "hc_shard"))
    )
    messages = (
        f"INSERT INTO {outbox.tables().outbox} (shard_scope, shard_identifier, category, "  # noqa: S608 - names from the model
        f"object_identifier, headers) SELECT %s::integer, hc_shard, %s::integer, hc_object, "
        f"%s::jsonb FROM hc_row {order} RETURNING id, shard_identifier, object_identifier"
    )
    return columns, messages
