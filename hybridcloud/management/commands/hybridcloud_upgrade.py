"""The command `hybridcloud_upgrade`: migrates, replicates and drains."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from hybridcloud.backfill.status import status_of
from hybridcloud.backfill.upgrade import SiloSummary, post_upgrade, silos_here
from hybridcloud.backfill.versions import models_of
from silos import assume_silo
from silos.router import silo_aliases

_VERSION: Final = 1
_FINDINGS: Final = 3
_INTERRUPTED: Final = 130


class Command(BaseCommand):
    """The command `hybridcloud_upgrade`."""

    help = (
        "After new code is installed: migrate, replicate every model up to the code's version, and "
        "drain the outboxes. Safe to interrupt and to repeat."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the options."""
        parser.add_argument(
            "--skip-migrate", action="store_true", help="the schema is already up to date"
        )
        parser.add_argument(
            "--plan", action="store_true", help="say what would be done, and change nothing"
        )
        parser.add_argument(
            "--check", action="store_true", help="like --plan, but exit 3 if anything is to do"
        )
        parser.add_argument(
            "--no-input", action="store_true", help="do not ask; passed on to migrate"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, **options: Any) -> None:
        """Upgrade each silo and report whether it is caught up.

        Raises:
            CommandError: a silo is not caught up, or the upgrade was interrupted.
        """
        if options["plan"] or options["check"]:
            self._plan(options)
            return
        try:
            summaries = self._upgrade(options)
        except KeyboardInterrupt:
            raise CommandError(
                "Interrupted; finished work is kept. Run it again to continue.",
                returncode=_INTERRUPTED,
            ) from None
        behind = [each.silo for each in summaries if not each.is_caught_up]
        if options["json"]:
            self._print_json(
                silos=[{**asdict(each), "caught_up": each.is_caught_up} for each in summaries]
            )
        else:
            for each in summaries:
                self._tell(each)
        if behind:
            raise CommandError(
                f"Not caught up: {', '.join(behind)}. Fix what the summary names and run it again.",
                returncode=_FINDINGS,
            )

    def _upgrade(self, options: dict[str, Any]) -> list[SiloSummary]:
        quiet = options["json"] or options["verbosity"] < 1
        if not options["skip_migrate"]:
            for alias in _aliases():
                call_command(
                    "migrate",
                    database=alias,
                    interactive=not options["no_input"],
                    verbosity=0 if quiet else options["verbosity"],
                    stdout=self.stdout,
                )
        answers: list[tuple[Any, Any]] = post_upgrade.send(
            sender=type(self), say=(lambda _: None) if quiet else self.stdout.write
        )
        return [
            summary
            for _, answer in answers
            if isinstance(answer, list)
            for summary in answer
            if isinstance(summary, SiloSummary)
        ]

    def _plan(self, options: dict[str, Any]) -> None:
        migrations: list[str] = []
        walks: list[str] = []
        for alias in _aliases():
            executor = MigrationExecutor(connections[alias])
            plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
            migrations += [f"{alias}: {migration}" for migration, _ in plan]
        if not migrations:
            for here in silos_here():
                with assume_silo(here.mode, cell=here.cell):
                    walks += [
                        f"{here.cell or 'control'}: {model._meta.label} to version {model.replication_version}"
                        for model in models_of(here.mode)
                        if status_of(model).version <= model.replication_version
                    ]
        if options["json"]:
            self._print_json(migrations=migrations, backfills=walks)
        else:
            for line in [f"migrate {each}" for each in migrations] + [
                f"backfill {each}" for each in walks
            ]:
                self.stdout.write(line)
            if migrations:
                self.stdout.write("backfill what the new schema requires")
            self.stdout.write("drain every outbox")
        if options["check"] and (migrations or walks):
            raise CommandError("The silos are not up to date: see above.", returncode=_FINDINGS)

    def _tell(self, each: SiloSummary) -> None:
        word = (
            self.style.SUCCESS("caught up")
            if each.is_caught_up
            else self.style.ERROR("not caught up")
        )
        self.stdout.write(
            f"{each.silo}: {word}, {each.rows} rows replicated, {each.messages} messages"
        )
        waiting = {
            "in the outbox": each.pending,
            "held": each.held,
            "delayed": each.delayed,
            "without a handler": each.unknown,
            "dead letters": each.dead,
            "failures": each.failing,
        }
        for what, count in waiting.items():
            if count:
                self.stdout.write(f"    {count} {what}")
        for reason in (*each.unfinished, *each.skipped):
            self.stdout.write(f"    {reason}")

    def _print_json(self, **document: Any) -> None:
        self.stdout.write(json.dumps({"version": _VERSION, **document}))


def _aliases() -> list[str]:
    """Return the process's aliases: its silos' and, if in use, the default."""
    found = [alias for alias in silo_aliases() if settings.DATABASES.get(alias)]
    if DEFAULT_DB_ALIAS not in found and settings.DATABASES.get(DEFAULT_DB_ALIAS, {}).get("ENGINE"):
        engine = str(settings.DATABASES[DEFAULT_DB_ALIAS]["ENGINE"])
        if not engine.endswith("dummy"):
            found.append(DEFAULT_DB_ALIAS)
    return found
