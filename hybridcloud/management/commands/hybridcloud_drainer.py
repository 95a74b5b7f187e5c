"""Runs a drainer without Celery: without it `KICK = "notify"` would wake nobody."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from hybridcloud.backfill.upgrade import silos_here
from hybridcloud.outbox.deliver.listener import ListeningDrainer, tables_of

if TYPE_CHECKING:
    from types import FrameType


class Command(BaseCommand):
    """A drainer that runs until it is told to stop."""

    help = (
        "Drain this process's outboxes until SIGTERM or SIGINT, woken by NOTIFY (KICK = 'notify') "
        "and every 2 s. The first signal finishes what is claimed and gives it back, the second ends at once."
    )

    def handle(self, **options: Any) -> None:
        """Drain until a signal.

        Raises:
            CommandError: there is nothing to drain.
        """
        tables = tables_of(silos_here())
        if not tables:
            raise CommandError("No outbox table in this process. See HYBRIDCLOUD['OUTBOX_MODELS'].")
        drainer = ListeningDrainer(tables)
        asked = False

        def stop(number: int, _: FrameType | None) -> None:
            nonlocal asked
            if asked:
                raise SystemExit(128 + number)
            asked = True
            drainer.stop()

        before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
        if options["verbosity"]:
            labels = ", ".join(f"{each.outbox._meta.label} on {each.alias}" for each in tables)
            self.stdout.write(f"Draining {labels}")
            self.stdout.flush()
        try:
            drainer.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
