"""Runs backfills in shares that leave room for live traffic.

::

    from hybridcloud.backfill import backfill_outboxes_for

    while backfill_outboxes_for(SiloMode.CELL, force_synchronous=True):
        ...
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from hybridcloud import hooks, options
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.batch import MOST_BY_SQL, BackfillBatch, Walk
from hybridcloud.backfill.pressure import count_waiting, measure_lag
from hybridcloud.backfill.versions import (
    MAX_LAG,
    find_replication_version,
    find_target_cells,
    in_silo_of,
    is_paused,
    models_of,
    rate_per_minute,
    require_integer_ids,
)
from hybridcloud.outbox.write.mixins import ProducingModel
from hybridcloud.outbox.write.registration import root_of
from silos import SiloMode, assume_silo, get_current_silo
from silos.cells import all_cells
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import Model

    from hybridcloud.backfill.cursor import Cursor

_LOG = logging.getLogger("hybridcloud.backfill")
BUDGET_S: Final = 1.0
"""Seconds after which a tick's call starts no further batch: ticks come every 2 s."""
FENCE_POLL_S: Final = 0.05
_MOST_LOST: Final = 3


def process_outbox_backfill_batch(
    model: type[Model],
    batch_size: int,
    force_synchronous: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
) -> BackfillBatch | None:
    """Write the messages of a model's next rows, and advance its position.

    A walk begins once the transactions that were writing when it was requested have
    ended. Until then nothing is walked, ``waits_for`` names them, and the next call
    goes on.

    Args:
        model: the producing model.
        batch_size: how many rows at most.
        force_synchronous: go by the code's version, whatever the options say.

    Returns:
        What was done; None if there is nothing to do, or the model produces no messages.

    Raises:
        ConfigurationError: the model's primary key is not an integer.
        ValueError: the batch size is not positive.
    """
    if batch_size <= 0:
        raise ValueError(
            f"Batch size {batch_size} of a backfill of {model._meta.label} is not positive, so "
            f"nothing would ever be walked. Give it at least 1."
        )
    if not issubclass(model, ProducingModel):
        return None
    root = root_of(model)
    require_integer_ids(root)
    with in_silo_of(root):
        target = find_replication_version(root, force_synchronous)
        walk = walk_of(root)
        cursor = cursors.read(walk.alias, root._meta.db_table)
        return walk.step(cursor, target=target, most=batch_size)


def backfill_outboxes_for(
    silo_mode: SiloMode,
    scheduled_count: int = 0,
    max_batch_rate: int | None = None,
    force_synchronous: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
) -> bool:
    """Continue the backfills of a silo, as far as there is room for them.

    Args:
        silo_mode: the control silo, or the current cell; MONOLITH: all silos of the process.
        scheduled_count: messages that are known to wait; more may be measured.
        max_batch_rate: messages to write per minute at most; None: the option, else the setting.
        force_synchronous: ignore options, rate and lag, and write up to
            ``max_batch_rate`` rows of each model now. For upgrades.

    Returns:
        Whether anything was written; if forced, whether there was anything to do.
    """
    current = get_current_silo()
    if silo_mode is SiloMode.MONOLITH:
        cells = [(SiloMode.CELL, cell.name) for cell in all_cells()]
        done = []
        for mode, cell in [(SiloMode.CONTROL, None), *cells]:
            with assume_silo(mode, cell=cell):
                done.append(
                    backfill_outboxes_for(mode, scheduled_count, max_batch_rate, force_synchronous)
                )
        return any(done)
    if current.mode is SiloMode.MONOLITH:
        with assume_silo(silo_mode):
            return backfill_outboxes_for(
                silo_mode, scheduled_count, max_batch_rate, force_synchronous
            )
    if force_synchronous:
        return _force(silo_mode, most=max_batch_rate or MOST_BY_SQL)
    return _Share(silo_mode, scheduled_count, max_batch_rate).run()


def go_on_with(model: type[ProducingModel]) -> bool:
    """Continue one model in the current silo, by its options, rate and lag.

    Returns:
        Whether anything was written.
    """
    return _Share(model.silo_mode, 0, None, only=model).run()


def walk_of(model: type[ProducingModel], tables: tuple[str, ...] = ()) -> Walk:
    """Return the walk of a model in its current silo."""
    return Walk(model, alias_for_model(model), tables or (model._meta.db_table,))


def _force(mode: SiloMode, *, most: int) -> bool:
    worked = waits = False
    for model in models_of(mode):
        require_integer_ids(model)
        walk, left = walk_of(model), most
        cursor = cursors.read(walk.alias, model._meta.db_table)
        while left > 0:
            batch = walk.step(cursor, target=model.replication_version, most=left)
            if batch is None:
                break
            worked = worked or batch.count > 0 or batch.lost
            waits = waits or bool(batch.waits_for)
            if batch.waits_for or batch.lost or not batch.has_more:
                break
            cursor, left = batch.cursor, left - batch.count
    if waits and not worked:
        # The caller repeats the call until there is nothing to do, so it must not spin.
        sleep(FENCE_POLL_S)
    return worked or waits


@dataclass(slots=True)
class _Share:
    """One tick's share of the minute's messages, divided among models.

    Attributes:
        mode: the silo.
        scheduled_count: messages that are known to wait.
        max_batch_rate: messages per minute; None: the option, else the setting.
        only: the one model to continue; None: all models of the silo.
        rate: the messages per minute that apply.
        room: messages that may still be written.
        used: messages of the last minute, as far as known here.
        cursors: the positions as they were read.
    """

    mode: SiloMode
    scheduled_count: int
    max_batch_rate: int | None
    only: type[ProducingModel] | None = None
    rate: int = 0
    room: int = 0
    used: int = 0
    cursors: Mapping[str, Cursor] = field(default_factory=dict)

    def run(self) -> bool:
        """Walk each model's share; return whether anything was written."""
        worked, deadline = False, monotonic() + BUDGET_S
        for _ in range(_MOST_LOST):
            todo = self._measure()
            lost = False
            while todo and self.room > 0 and not lost and monotonic() < deadline:
                round_ = list(todo)
                for served, model in enumerate(round_):
                    batch = self._one(model, -(-self.room // (len(round_) - served)))
                    if batch is None or not batch.has_more or batch.waits_for:
                        todo = [each for each in todo if each is not model]
                    if batch is None:
                        continue
                    worked = worked or batch.count > 0
                    lost = lost or batch.lost
                    if lost or self.room <= 0 or monotonic() > deadline:
                        break
            if not lost:
                break
        return worked

    def _measure(self) -> list[type[ProducingModel]]:
        """Measure how much room there is; return the models with work.

        The model that has waited longest comes first.
        """
        todo = {
            model._meta.db_table: model
            for model in ([self.only] if self.only else models_of(self.mode))
            if find_replication_version(model) >= 1 and not is_paused(model)
        }
        if not todo:
            return []
        alias = alias_for_model(next(iter(todo.values())))
        tables = [model._meta.db_table for model in models_of(self.mode)]
        self.cursors = cursors.read_all(alias, tables)
        found = []
        for table, model in todo.items():
            cursor = self.cursors.get(table) or cursors.read(alias, table)
            self.cursors = {**self.cursors, table: cursor}
            if cursor.version <= find_replication_version(model):
                found.append(model)
        if not found or measure_lag(self.mode) > options.get(MAX_LAG):
            return []
        self.rate = rate_per_minute() if self.max_batch_rate is None else self.max_batch_rate
        self.used = sum(cursor.used for cursor in self.cursors.values())
        waiting = max(self.scheduled_count, count_waiting(self.mode, most=max(self.rate, 0)))
        self.room = self.rate - max(waiting, self.used)
        return sorted(found, key=lambda model: self.cursors[model._meta.db_table].updated_at)

    def _one(self, model: type[ProducingModel], share: int) -> BackfillBatch | None:
        """Walk a model's share of rows; None if it is finished for now."""
        table = model._meta.db_table
        fan_out = _most_messages_a_row(model)
        if self.room < min(fan_out, self.rate):
            return None
        try:
            require_integer_ids(model)
            batch = walk_of(model, tuple(sorted(self.cursors))).step(
                self.cursors[table],
                target=find_replication_version(model),
                most=max(1, share // fan_out),
                used=self.used,
            )
        except Exception as exc:  # noqa: BLE001 - the edge of the process: one model must not stop the others
            tags = {"model": model._meta.label}
            hooks.tell(hooks.active.captured, hooks.Captured(exc, "backfill", tags))
            _LOG.exception("Backfill of %s failed; it is tried again at the next tick", table)
            return None
        if batch is not None:
            self.cursors = {**self.cursors, table: batch.cursor}
            self.used += batch.messages
            self.room -= batch.messages
        return batch


def _most_messages_a_row(model: type[ProducingModel]) -> int:
    if model.silo_mode is not SiloMode.CONTROL:
        return 1
    return max(1, len(find_target_cells(model) or all_cells()))
