"""Replicates and drains every silo of the process after an upgrade.

Safe to interrupt and to repeat: finished work is committed with its position,
and a second run finds nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from django.dispatch import Signal

from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.batch import MOST_BY_SQL
from hybridcloud.backfill.run import FENCE_POLL_S, walk_of
from hybridcloud.backfill.versions import models_of, require_integer_ids
from hybridcloud.errors import ConfigurationError
from hybridcloud.outbox.deliver.tick import tick
from hybridcloud.outbox.drain.loop import Drainer
from hybridcloud.outbox.store.session import Engine
from hybridcloud.outbox.store.tables import outbox_models
from silos import SiloMode, assume_silo
from silos.cells import all_cells
from silos.mode import CurrentSilo, get_process_silo
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridcloud.outbox.write.mixins import ProducingModel

post_upgrade = Signal()
"""Sent after code and schema are upgraded, to replicate and drain every silo here.

Receivers get ``say``, a function that takes a line to show to the person upgrading.
"""
FENCE_WAIT_S: Final = 60.0
DRAIN_BUDGET_S: Final = 3600.0
_COUNTS: Final = """
SELECT (SELECT count(*) FROM {outbox}),
       count(*) FILTER (WHERE reason = 'held'), count(*) FILTER (WHERE reason = 'delayed'),
       count(*) FILTER (WHERE reason = 'unknown'), count(*) FILTER (WHERE reason = 'dead'),
       (SELECT count(*) FROM {failure})
  FROM {parked}"""


@dataclass(frozen=True, slots=True)
class SiloSummary:
    """What an upgrade did in a silo, and what is left there.

    Attributes:
        silo: ``control``, or a cell's name.
        rows: rows that were walked.
        messages: messages that were written for them.
        unfinished: models whose walk could not begin or end, each with the reason.
        skipped: models that cannot be walked and never requested it, each with the reason.
        pending: messages in the outboxes.
        held: messages behind a failure or a switch.
        delayed: messages scheduled for later.
        unknown: messages that no running code handles.
        dead: dead letters.
        failing: shards, categories and objects in backoff.
    """

    silo: str
    rows: int = 0
    messages: int = 0
    unfinished: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    pending: int = 0
    held: int = 0
    delayed: int = 0
    unknown: int = 0
    dead: int = 0
    failing: int = 0

    @property
    def is_caught_up(self) -> bool:
        """Whether every row was walked and nothing waits.

        Messages that people must decide on (unknown ones, dead letters) do not count.
        """
        return not (self.unfinished or self.pending or self.held or self.delayed)


def catch_up(
    *,
    say: Callable[[str], None] = lambda _: None,
    fence_wait_s: float = FENCE_WAIT_S,
    drain_budget_s: float = DRAIN_BUDGET_S,
) -> list[SiloSummary]:
    """Replicate every silo here up to the code's versions, and drain it.

    Options, rates and lag are ignored.

    Args:
        say: called with a line about each step.
        fence_wait_s: seconds that a walk waits at most for writers that began before it.
        drain_budget_s: seconds to drain at most.

    Returns:
        What was done and what is left, for each silo.
    """
    found = []
    for here in silos_here():
        with assume_silo(here.mode, cell=here.cell):
            summary = SiloSummary(here.cell or "control")
            for model in models_of(here.mode):
                summary = _replicate(model, summary, say, fence_wait_s)
            found.append(summary)
    deadline = monotonic() + drain_budget_s
    say("Draining the outboxes")
    # The handlers of one silo may have written messages in another.
    while sum(map(_drain, silos_here())) and monotonic() < deadline:
        pass
    return [_counted(here, summary) for here, summary in zip(silos_here(), found, strict=True)]


def silos_here() -> list[CurrentSilo]:
    """Return this process's silo; in a monolith, control and each cell."""
    here = get_process_silo()
    if here.mode is not SiloMode.MONOLITH:
        return [here]
    cells = [CurrentSilo(SiloMode.CELL, cell.name) for cell in all_cells()]
    return [CurrentSilo(SiloMode.CONTROL), *cells]


def run_outbox_replications_for_self_hosted(
    *, say: Callable[[str], None] | None = None, **_: Any
) -> list[SiloSummary]:
    """Run `catch_up` when ``post_upgrade`` is sent."""
    return catch_up(say=say or (lambda _: None))


def _replicate(
    model: type[ProducingModel],
    summary: SiloSummary,
    say: Callable[[str], None],
    fence_wait_s: float,
) -> SiloSummary:
    label = model._meta.label
    try:
        require_integer_ids(model)
    except ConfigurationError as exc:
        if model.replication_version == 1:
            return replace(summary, skipped=(*summary.skipped, str(exc)))
        return replace(summary, unfinished=(*summary.unfinished, str(exc)))
    walk, rows, messages = walk_of(model), 0, 0
    cursor, deadline = cursors.read(walk.alias, model._meta.db_table), monotonic() + fence_wait_s
    while True:
        batch = walk.step(cursor, target=model.replication_version, most=MOST_BY_SQL)
        if batch is None:
            break
        rows, messages = rows + batch.count, messages + batch.messages
        if batch.waits_for and monotonic() > deadline:
            reason = (
                f"{label}: {len(batch.waits_for)} transactions that write to its table have been "
                f"open since before the walk. End them, then run this again."
            )
            return _with(summary, rows, messages, unfinished=(*summary.unfinished, reason))
        if batch.waits_for or batch.lost:
            sleep(FENCE_POLL_S)
        cursor = cursors.read(walk.alias, model._meta.db_table) if batch.lost else batch.cursor
    if rows:
        say(f"{summary.silo}: {label} version {model.replication_version}: {rows} rows")
    return _with(summary, rows, messages)


def _with(summary: SiloSummary, rows: int, messages: int, **more: Any) -> SiloSummary:
    return replace(summary, rows=summary.rows + rows, messages=summary.messages + messages, **more)


def _engines(here: CurrentSilo) -> Iterator[Engine]:
    for outbox in outbox_models(here.mode):
        yield Engine(outbox, alias_for_model(outbox))


def _drain(here: CurrentSilo) -> int:
    with assume_silo(here.mode, cell=here.cell):
        moved = 0
        for engine in _engines(here):
            tick(engine)
            moved += Drainer(engine.outbox, engine.alias).sweep(whole=True)
        return moved


def _counted(here: CurrentSilo, summary: SiloSummary) -> SiloSummary:
    with assume_silo(here.mode, cell=here.cell):
        sums = [0] * 6
        for engine in _engines(here):
            tables = engine.tables
            text = _COUNTS.format(
                outbox=tables.outbox, parked=tables.parked, failure=tables.failure
            )
            with engine.connection.cursor() as sql:
                sql.execute(text)
                sums = [a + b for a, b in zip(sums, sql.fetchone(), strict=True)]
    pending, held, delayed, unknown, dead, failing = sums
    return replace(
        summary,
        pending=pending,
        held=held,
        delayed=delayed,
        unknown=unknown,
        dead=dead,
        failing=failing,
    )
