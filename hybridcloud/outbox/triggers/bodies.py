"""The SQL of the triggers that write a model's messages.

A trigger's name carries a version, a hash of the bodies, so that the installed triggers can be
compared with the models.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import models

from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox.declare.cell_mapping import CellMapping
from hybridcloud.outbox.declare.identifiers import shard_field
from hybridcloud.outbox.store.tables import quoted
from hybridcloud.outbox.triggers.runtime import HEADERS_SETTING
from hybridcloud.outbox.write.messages import columns_payload, uses_default
from hybridcloud.outbox.write.registration import root_of
from silos import SiloMode
from silos.cells import all_cells

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridcloud.outbox.write.mixins import ProducingModel

PREFIX: Final = "hybridcloud_outbox_"
TRUNCATE_SETTING: Final = "hybridcloud.truncate"
# PostgreSQL and Python write values of these as the same JSON.
_PLAIN: Final = (
    models.BooleanField,
    models.CharField,
    models.FloatField,
    models.IntegerField,
    models.JSONField,
    models.TextField,
)
REFERENCING: Final = {
    "insert": "REFERENCING NEW TABLE AS hc_new",
    "update": "REFERENCING OLD TABLE AS hc_old NEW TABLE AS hc_new",
    "delete": "REFERENCING OLD TABLE AS hc_old",
    "truncate": "",
}


class Trigger(NamedTuple):
    """One trigger of a model; its function has the same name.

    ``body`` is the function's source, with its ``tables``, which are quoted, as `_somewhere` names
    them.
    """

    event: str
    name: str
    body: str
    tables: tuple[str, ...] = ()

    def located(self, schemas: Mapping[str, str]) -> Trigger:
        """Return the trigger for a database where its tables have these schemas.

        A function with a search_path of its own would find them too, at a cost for each save.
        """
        body = self.body
        for table in self.tables:
            schema = schemas.get(table)
            body = body.replace(_somewhere(table), f"{schema}.{table}" if schema else table)
        return self._replace(body=body)


def problem_of(model: type[ProducingModel]) -> str | None:  # noqa: PLR0911 - one answer for each reason
    """Say why triggers cannot write a model's messages; None if they can."""
    if model.silo_mode is SiloMode.CONTROL and (problem := _problem_of_cells(model)) is not None:
        return problem
    if not model.has_default_messages():
        return "it makes its messages itself"
    hook: Any = model.payload_for_update
    if not uses_default(model, "payload_for_update") and hook is not columns_payload:
        return "payload_for_update() is Python; name columns in trigger_payload instead"
    concrete: Any = model._meta.concrete_model
    root: Any = root_of(model)
    if concrete._meta.parents or root._meta.concrete_model is not concrete:
        return "its rows are in several tables (multi-table inheritance)"
    if not _is(concrete._meta.pk, models.IntegerField):
        return "its primary key is not an integer"
    shard: Any = shard_field(model.category.get_scope(), model)
    if shard is None or shard.null or not _is(shard, models.IntegerField):
        return "its shard key is not a NOT NULL integer column of its own"
    own = {field.attname: field for field in concrete._meta.concrete_fields}
    for name in model.trigger_payload:
        if name not in own or not any(_is(own[name], kind) for kind in _PLAIN):
            return f"{name!r} in trigger_payload is not a number, text, boolean or JSON column"
    return None


def _problem_of_cells(model: Any) -> str | None:
    if model.trigger_cells is None:
        return "it lives in control, and trigger_cells does not say which cells to tell"
    for hook in ("outbox_cell_names", "outbox_cell_names_for_deletion"):
        if hasattr(model, hook) and not uses_default(model, hook):
            return f"{hook}() is Python; leave it to trigger_cells"
    if model.trigger_cells == "all":
        return None
    if not isinstance(model.trigger_cells, CellMapping):
        return f"trigger_cells is {model.trigger_cells!r}, neither 'all' nor a CellMapping"
    return model.trigger_cells.problem(model)


def triggers_of(model: type[ProducingModel]) -> tuple[Trigger, ...]:
    """Return a model's triggers; raise ConfigurationError for a problem."""
    if (problem := problem_of(model)) is not None:
        raise ConfigurationError(
            f"No triggers for {model._meta.label}: {problem}. Change that, or leave outbox_via out."
        )
    bodies = _bodies(model)
    text = "\n".join((model._meta.db_table, *bodies.values(), *REFERENCING.values()))
    version = hashlib.sha256(text.encode()).hexdigest()[:12]
    cells = model.trigger_cells
    mapping = (quoted(cells.resolved()._meta.db_table),) if isinstance(cells, CellMapping) else ()
    tables = (model.outbox_model().tables().outbox, *mapping)
    return tuple(
        Trigger(event, f"{PREFIX}{event}_{version}", f"\n-- version {version}{body}", tables)
        for event, body in bodies.items()
    )


def _body(model: type[ProducingModel], changes: str, *sources: str, ordered: bool = True) -> str:
    """Return the source of a function that writes a statement's messages.

    ``changes`` is a FROM item with one row for each row that the statement changed, and ``sources``
    are queries that make messages of one such row. Without ``ordered`` the rows keep their order.
    """
    category, target = model.category, _somewhere(model.outbox_model().tables().outbox)
    fans_out = model.silo_mode is SiloMode.CONTROL
    into, cell, last = ("cell_name, ", "m.cell, ", ", m.cell") if fans_out else ("", "", "")
    order = f"\n  ORDER BY m.object, m.rank{last}" if ordered else ""
    return f"""
BEGIN
  INSERT INTO {target}
    ({into}shard_scope, shard_identifier, category, object_identifier, payload, headers)
  SELECT {cell}{category.get_scope().value}, m.shard, {category.value}, m.object, m.payload,
    NULLIF(current_setting('{HEADERS_SETTING}', true), '')::jsonb
  FROM {changes} CROSS JOIN LATERAL ({" UNION ALL ".join(sources)}) AS m{order};
  RETURN NULL;
END
"""  # noqa: S608 - names and numbers from the model


def _bodies(model: type[ProducingModel]) -> dict[str, str]:
    concrete: Any = model._meta.concrete_model
    shard: Any = shard_field(model.category.get_scope(), model)
    key, shard_column = quoted(concrete._meta.pk.column), quoted(shard.column)
    fans_out = model.silo_mode is SiloMode.CONTROL
    own = {field.attname: quoted(field.column) for field in concrete._meta.concrete_fields}

    def message(row: str, content: str, rank: int, cells: str, where: str = "true") -> str:
        """Return SQL for a row's message, or for one for each of its cells."""
        pairs = ", ".join(f"'{name}', {content}.{own[name]}" for name in model.trigger_payload)
        payload = f"jsonb_build_object({pairs})" if pairs else "NULL::jsonb"
        return (
            f"SELECT {row}.{shard_column} AS shard, {row}.{key} AS object, "  # noqa: S608
            f"{payload} AS payload, {rank} AS rank"
            f"{f', c.cell FROM ({cells}) AS c' if fans_out else ''} WHERE {where}"
        )

    every, mine = _every_cell(), _cells_of_row(model, "n") if fans_out else ""
    columns = [quoted(f.column) for f in concrete._meta.concrete_fields if not f.generated]
    before, after = (", ".join(f"{row}.{name}" for name in columns) for row in "on")
    # Byte by byte: some types have no equality, and others call different values equal.
    changed = f"ROW({before})::record *<> ROW({after})::record"
    stays = f"o.{key} IS NOT NULL AND n.{key} IS NOT NULL"
    updated = [
        message("n", "n", 1, mine, f"n.{key} IS NOT NULL AND (o.{key} IS NULL OR {changed})"),
        # A shard that the row left gets the new payload; a primary key that is gone, the old one.
        message("o", "n", 0, every, f"{stays} AND o.{shard_column} <> n.{shard_column}"),
        message("o", "o", 0, every, f"n.{key} IS NULL"),
    ]
    if fans_out and model.trigger_cells != "all":
        # Cells that are no longer the row's may still hold a copy.
        left = f"{_cells_of_row(model, 'o')} EXCEPT {mine}"
        updated += [message("o", "n", 0, left, f"{stays} AND o.{shard_column} = n.{shard_column}")]
    # A full join is hashed or merged. A plain join would be planned for one row, as nested loops,
    # and plpgsql would keep that plan for ten thousand rows.
    joined = f"hc_old AS o FULL JOIN hc_new AS n ON o.{key} = n.{key}"
    return {
        # New rows come in the order of their ids, and sorting one costs a third of its message.
        "insert": _body(model, "hc_new AS n", message("n", "n", 1, mine), ordered=fans_out),
        "update": _body(model, joined, *updated),
        "delete": _body(model, "hc_old AS o", message("o", "o", 1, every)),
        "truncate": _REFUSE_TRUNCATE,
    }


_REFUSE_TRUNCATE: Final = f"""
BEGIN
  IF current_setting('{TRUNCATE_SETTING}', true) = 'allowed' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'TRUNCATE of %: its rows would go without messages', TG_RELID::regclass
    USING HINT = 'DELETE the rows, or SET {TRUNCATE_SETTING} = allowed if no copy matters.';
END
"""


def _every_cell() -> str:
    """Return a query of all cells in the directory, as ``cell``."""
    names = sorted(cell.name for cell in all_cells())
    texts = ", ".join("'{}'".format(name.replace("'", "''")) for name in names)
    return f"SELECT unnest(ARRAY[{texts}]::text[]) AS cell"


def _cells_of_row(model: Any, alias: str) -> str:
    """Return a query of the cells to tell about a transition table's row."""
    if model.trigger_cells == "all":
        return _every_cell()
    mapping: CellMapping = model.trigger_cells
    match, on, cell = (quoted(column) for column in mapping.columns(model))
    table = _somewhere(quoted(mapping.resolved()._meta.db_table))
    return (
        f"SELECT DISTINCT x.{cell}::text AS cell FROM {table} AS x "  # noqa: S608 - names of models
        f"WHERE x.{on} = {alias}.{match}"
    )


def _somewhere(table: str) -> str:
    """Return a placeholder for a table whose schema is not known yet."""
    return f"@somewhere@.{table}"


def _is(field: Any, kind: type[models.Field[Any, Any]]) -> bool:
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    return isinstance(field, kind)
