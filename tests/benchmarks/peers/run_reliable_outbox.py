"""django-reliable-outbox: an event per message, with the shard as its key.

The burst mode of its worker drains them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings

told = json.load(sys.stdin)
url = urlsplit(told["dsn"])
# Otherwise it logs a line for each message.
logging.disable(logging.INFO)
settings.configure(
    INSTALLED_APPS=["reliable_outbox"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path.lstrip("/"),
            "USER": url.username,
            "PASSWORD": url.password,
            "HOST": url.hostname,
            "PORT": url.port,
        }
    },
    RELIABLE_OUTBOX={"BATCH_SIZE": told["batch_size"], "NOTIFY": False},
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from reliable_outbox import Envelope, handler, publish

calls, wait = [0], told["handler_ms"] / 1000


@handler("changed")
def handle(envelope: Envelope) -> None:
    calls[0] += 1
    if wait:
        time.sleep(wait)


def main() -> None:
    call_command("migrate", verbosity=0)
    with transaction.atomic():
        for shard, number in told["rows"]:
            publish("changed", {"n": number}, key=str(shard))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    arguments: dict[str, Any] = {"burst": True, "stdout": sys.stderr}
    begin = time.perf_counter()
    call_command("outbox_worker", **arguments)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "calls": calls[0]}))


main()
