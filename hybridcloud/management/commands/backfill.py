"""The command `backfill`: shows, runs and resets backfills."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.batch import MOST_BY_SQL
from hybridcloud.backfill.cursor import set_processing_state
from hybridcloud.backfill.run import FENCE_POLL_S, go_on_with, walk_of
from hybridcloud.backfill.status import read_status, status_of
from hybridcloud.backfill.versions import find_model, require_integer_ids
from hybridcloud.errors import ConfigurationError
from hybridcloud.management.places import add_silo_argument, chosen_silos
from silos import assume_silo
from silos.errors import SiloError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridcloud.backfill.status import BackfillStatus
    from hybridcloud.outbox.write.mixins import ProducingModel
    from silos.mode import CurrentSilo

_VERSION: Final = 1
_USAGE: Final = 2
_FINDINGS: Final = 3
_INTERRUPTED: Final = 130
_POLL_S: Final = 1.0
type _Show = Callable[[BackfillStatus], None]


class Command(BaseCommand):
    """The command `backfill`."""

    help = "Show, run or reset backfills: the replication of existing rows."

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the sub-commands."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        status = verbs.add_parser(
            "status", help="show each model's version, target, progress, rate and estimated end"
        )
        run = verbs.add_parser("run", help="backfill one model in this process until it is done")
        reset = verbs.add_parser(
            "reset", help="backfill a version again from the beginning; asks first"
        )
        for each in (run, reset):
            each.add_argument("model", help="a label such as acme.User, or a table's name")
        run.add_argument(
            "--sync",
            action="store_true",
            help="go to the code's version at full speed, ignoring options, rate and lag",
        )
        reset.add_argument(
            "--version-to-walk", "--version", type=int, required=True, dest="to_walk"
        )
        reset.add_argument("--dry-run", action="store_true", help="only say what would be done")
        reset.add_argument("--no-input", action="store_true", help="do not ask for confirmation")
        for each in (status, run, reset):
            add_silo_argument(each)
            each.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *, verb: str, **options: Any) -> None:
        """Run one verb.

        Raises:
            CommandError: the model or silo does not exist, its backfill is off, paused or not
                possible, or the run was interrupted.
        """
        try:
            {"status": self._status, "run": self._run, "reset": self._reset}[verb](options)
        except (SiloError, ConfigurationError) as exc:
            raise CommandError(str(exc), returncode=_USAGE) from exc
        except KeyboardInterrupt:
            raise CommandError(
                "Interrupted; the position is kept. Run it again to continue.",
                returncode=_INTERRUPTED,
            ) from None

    def _status(self, options: dict[str, Any]) -> None:
        found = []
        for here in chosen_silos(options["silo"]):
            with assume_silo(here.mode, cell=here.cell):
                found += [(here.cell or "control", status) for status in read_status(here.mode)]
        if options["json"]:
            self._print_json(backfills=[{"silo": silo, **asdict(status)} for silo, status in found])
            return
        rows: list[tuple[str, ...]] = [
            (
                "SILO",
                "MODEL",
                "STATE",
                "VERSION",
                "TARGET",
                "ROWS",
                "BY ID",
                "BY ROWS",
                "PER MIN",
                "ETA",
            )
        ]
        rows += [_row(silo, status) for silo, status in found]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            self.stdout.write("  ".join(map(str.ljust, row, widths)).rstrip())

    def _run(self, options: dict[str, Any]) -> None:
        model = _named(options["model"])
        require_integer_ids(model)
        document = []
        for here in self._silos_of(model, options):
            with assume_silo(here.mode, cell=here.cell):
                silo = here.cell or "control"
                self._refuse_undone(model, sync=options["sync"])
                with self._showing(
                    silo, model, quiet=options["json"] or options["verbosity"] < 1
                ) as show:
                    rows, messages = (_run_sync if options["sync"] else _run_paced)(model, show)
                document.append(
                    {"silo": silo, "rows": rows, "messages": messages, **asdict(status_of(model))}
                )
                if not options["json"]:
                    self.stdout.write(
                        f"{silo}: {model._meta.label} is done, {rows} rows, {messages} messages"
                    )
        if options["json"]:
            self._print_json(backfills=document)

    def _reset(self, options: dict[str, Any]) -> None:
        model, version = _named(options["model"]), options["to_walk"]
        if version < 1:
            raise CommandError(
                f"Version {version} is not positive. Versions begin at 1.", returncode=_USAGE
            )
        document = []
        for here in self._silos_of(model, options):
            with assume_silo(here.mode, cell=here.cell):
                silo, before = here.cell or "control", status_of(model)
                change = f"{silo}: {model._meta.label} from ({before.low_bound}, {before.version}) to (0, {version})"
                agreed = not options["dry_run"] and (options["no_input"] or _is_agreed(change))
                if agreed:
                    set_processing_state(model._meta.db_table, 0, version)
                document.append({"silo": silo, "model": model._meta.label, "changed": agreed})
                if not options["json"]:
                    self.stdout.write(change if agreed else f"{change}: not done")
        if options["json"]:
            self._print_json(dry_run=options["dry_run"], resets=document)

    def _silos_of(self, model: type[ProducingModel], options: dict[str, Any]) -> list[CurrentSilo]:
        found = [here for here in chosen_silos(options["silo"]) if here.mode is model.silo_mode]
        if not found:
            raise CommandError(
                f"{model._meta.label} does not live here: its silo is {model.silo_mode.name.lower()}. "
                f"Run this in a process of that silo.",
                returncode=_USAGE,
            )
        return found

    def _refuse_undone(self, model: type[ProducingModel], *, sync: bool) -> None:
        status = status_of(model)
        if not sync and status.state in ("off", "stopped"):
            raise CommandError(
                f"Nothing to backfill: the option outbox_replication.{status.table}.replication_version "
                f"allows {status.model} only up to version {status.target}, but {status.version} is next. "
                f"Raise it with hybridcloud_options set, or use --sync.",
                returncode=_FINDINGS,
            )
        if not sync and status.state == "paused":
            raise CommandError(
                f"Paused: {status.model}, by hybridcloud.backfill.paused or its own option. Unset it.",
                returncode=_FINDINGS,
            )

    @contextmanager
    def _showing(self, silo: str, model: type[ProducingModel], *, quiet: bool) -> Iterator[_Show]:
        """Show progress on a terminal: a bar with rich, otherwise lines."""
        if quiet or not sys.stdout.isatty():
            yield lambda _: None
            return
        try:
            from rich.progress import Progress  # noqa: PLC0415 - optional dependency
        except ImportError:
            yield lambda status: self.stdout.write(
                f"{silo}: {status.rows} rows, at id {status.low_bound}"
            )
            return
        with Progress() as progress:
            bar = progress.add_task(f"{silo}: {model._meta.label}", total=None)
            yield lambda status: progress.update(
                bar, completed=status.rows, total=status.rows_expected
            )

    def _print_json(self, **document: Any) -> None:
        self.stdout.write(json.dumps({"version": _VERSION, **document}))


def _named(name: str) -> type[ProducingModel]:
    try:
        return find_model(name)
    except LookupError as exc:
        raise CommandError(str(exc), returncode=_USAGE) from exc


def _run_sync(model: type[ProducingModel], show: _Show) -> tuple[int, int]:
    walk, rows, messages = walk_of(model), 0, 0
    cursor = cursors.read(walk.alias, model._meta.db_table)
    while True:
        batch = walk.step(cursor, target=model.replication_version, most=MOST_BY_SQL)
        if batch is None:
            return rows, messages
        rows, messages, cursor = rows + batch.count, messages + batch.messages, batch.cursor
        if batch.waits_for or batch.lost:
            sleep(FENCE_POLL_S)
            cursor = cursors.read(walk.alias, model._meta.db_table)
        show(status_of(model))


def _run_paced(model: type[ProducingModel], show: _Show) -> tuple[int, int]:
    while True:
        worked, status = go_on_with(model), status_of(model)
        show(status)
        if status.state not in ("due", "fenced", "walking"):
            # Also true if the model was paused, or its option lowered, in the meantime.
            return status.rows, status.messages
        if not worked:
            sleep(_POLL_S)


def _is_agreed(change: str) -> bool:
    return input(f"{change}. All of its rows will be sent again. [y/N] ").strip().lower() in (
        "y",
        "yes",
    )


def _row(silo: str, status: BackfillStatus) -> tuple[str, ...]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    eta = "-" if status.eta_s is None else str(timedelta(seconds=round(status.eta_s)))
    return (
        silo,
        status.model,
        status.state,
        str(status.version),
        f"{status.target} of {status.code_version}",
        str(status.rows),
        share(status.progress_by_id),
        share(status.progress_by_rows),
        str(status.messages_per_minute),
        eta,
    )
