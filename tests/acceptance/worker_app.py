"""A Celery app whose handlers tell Redis what they do: without it a worker's work could not be seen from a test."""

from __future__ import annotations

import os
import time
from typing import Any

from fixtures.celery import app
from hybridcloud.redis import redis_client

HANDLED = "test.handled"
STARTED = "test.started"
HOLD = "test.hold"


def handle(*, object_identifier: int, **_: Any) -> None:
    """Note the call, and stand still as long as the test says so."""
    client = redis_client()
    assert client is not None
    client.rpush(STARTED, f"{os.getpid()}:{object_identifier}")
    while client.get(HOLD) == str(object_identifier):
        time.sleep(0.02)  # held by the test, which lets go or kills
    client.rpush(HANDLED, object_identifier)


@app.on_after_finalize.connect
def connect(**_: Any) -> None:
    """Connect the receiver once Django is set up."""
    import django

    django.setup()
    from hybridcloud.outbox import process_cell_outbox
    from tests.hybridcloud.outbox.engine import Kind

    process_cell_outbox.connect(handle, sender=Kind.PLAIN, weak=False)


__all__ = ["app"]
