"""Reports how far each backfill has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django.db import connections
from django.utils import timezone

from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.versions import find_replication_version, is_paused, models_of
from silos.router import alias_for_model

if TYPE_CHECKING:
    from hybridcloud.backfill.cursor import Cursor
    from hybridcloud.outbox.write.mixins import ProducingModel
    from silos import SiloMode

type State = Literal["off", "done", "due", "fenced", "walking", "paused", "stopped"]


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """Where the backfill of one model stands in one silo.

    Attributes:
        model: the model's label.
        table: the model's table.
        state: ``off`` (there is something to walk, but the option does not request it), ``done``,
            ``due`` (not begun), ``fenced`` (waits for writers that began before it),
            ``walking``, ``paused`` or ``stopped`` (the option was lowered during the walk).
        version: the version being walked, or the next one to walk.
        target: the version to reach: the lower of option and code.
        code_version: the version in the code.
        low_bound: the lowest id that is not walked yet.
        upto: the last id of the walk, once it is known.
        rows: rows walked in this version; if done, in the last one.
        rows_expected: roughly how many rows the walk was expected to have.
        messages: messages written for them.
        progress_by_id: share of the id range that is walked, from 0 to 1.
        progress_by_rows: share of the expected rows that is walked.
        messages_per_minute: messages written in the last minute.
        eta_s: seconds to the end at the present rate; None if nothing moves.
    """

    model: str
    table: str
    state: State
    version: int
    target: int
    code_version: int
    low_bound: int
    upto: int | None
    rows: int
    rows_expected: int | None
    messages: int
    progress_by_id: float | None
    progress_by_rows: float | None
    messages_per_minute: int
    eta_s: float | None


def read_status(mode: SiloMode) -> list[BackfillStatus]:
    """Return where every backfill of the current silo stands."""
    return [status_of(model) for model in models_of(mode)]


def status_of(model: type[ProducingModel]) -> BackfillStatus:
    """Return where a model's backfill stands in the current silo."""
    alias, table = alias_for_model(model), model._meta.db_table
    cursor = cursors.read_all(alias, [table]).get(table) or cursors.read(alias, table)
    target = find_replication_version(model)
    state = _state(model, cursor, target)
    walks = cursor.upto is not None
    return BackfillStatus(
        model=model._meta.label,
        table=table,
        state=state,
        version=cursor.version,
        target=target,
        code_version=model.replication_version,
        low_bound=cursor.low_bound,
        upto=cursor.upto,
        rows=cursor.row_count,
        rows_expected=cursor.rows_expected,
        messages=cursor.message_count,
        progress_by_id=1.0 if state == "done" else _progress_by_id(model, alias, cursor),
        progress_by_rows=1.0 if state == "done" else _progress_by_rows(cursor) if walks else None,
        messages_per_minute=cursor.used,
        eta_s=_eta(cursor) if state == "walking" else None,
    )


def _state(model: type[ProducingModel], cursor: Cursor, target: int) -> State:
    begun = cursor.started or cursor.writers is not None
    if cursor.version > target:
        if begun:
            return "stopped"
        # An upgrade walks regardless of the options, so a walk may be done with the option at 0.
        return "done" if target >= 1 or cursor.version > model.replication_version else "off"
    if is_paused(model):
        return "paused"
    if cursor.version < target or not begun:
        return "due"
    return "walking" if cursor.upto is not None or cursor.writers is None else "fenced"


def _progress_by_id(model: type[ProducingModel], alias: str, cursor: Cursor) -> float | None:
    if cursor.upto is None:
        return None
    if not cursor.started:
        return 0.0
    quote = connections[alias].ops.quote_name
    primary_key: Any = model._meta.pk
    key, table = quote(primary_key.column), quote(model._meta.db_table)
    with connections[alias].cursor() as sql:
        sql.execute(f"SELECT min({key}) FROM {table}")  # noqa: S608 - names of a model
        (first,) = sql.fetchone()
    if first is None or first >= cursor.upto:
        return None
    share: float = (cursor.low_bound - first) / (cursor.upto - first + 1)
    return min(1.0, max(0.0, share))


def _progress_by_rows(cursor: Cursor) -> float | None:
    if not cursor.rows_expected:
        return None
    return min(1.0, cursor.row_count / cursor.rows_expected)


def _eta(cursor: Cursor) -> float | None:
    if not cursor.used or not cursor.row_count or cursor.rows_expected is None:
        return None
    window = 60.0
    if cursor.began_at is not None:
        window = min(window, max(1.0, (timezone.now() - cursor.began_at).total_seconds()))
    messages_a_row = max(cursor.message_count / cursor.row_count, 1e-9)
    left = max(0, cursor.rows_expected - cursor.row_count)
    return left * messages_a_row / (cursor.used / window)
