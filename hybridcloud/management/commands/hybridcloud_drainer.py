"""The command `hybridcloud_drainer`: runs a drainer without Celery.

`KICK = "notify"` needs at least one to wake.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from hybridcloud.backfill.upgrade import silos_here
from hybridcloud.outbox.deliver.listener import ListeningDrainer, tables_of
from hybridcloud.raised import DrainerStopped

if TYPE_CHECKING:
    from types import FrameType


class Command(BaseCommand):
    """The command `hybridcloud_drainer`."""

    help = (
        "Drain this process's outboxes until SIGTERM or SIGINT, woken by NOTIFY (KICK = 'notify') "
        "and every 2 s. On the first signal the claimed shards are finished and released; on the second "
        "the process exits at once."
    )

    def handle(self, **options: Any) -> None:
        """Drain until a signal arrives.

        Raises:
            CommandError: the process has no outbox table.
        """
        tables = tables_of(silos_here())
        if not tables:
            raise CommandError("No outbox table in this process. See HYBRIDCLOUD['OUTBOX_MODELS'].")
        drainer = ListeningDrainer(tables)
        asked = False

        def stop(number: int, _: FrameType | None) -> None:
            nonlocal asked
            if asked:
                raise DrainerStopped(128 + number)
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
