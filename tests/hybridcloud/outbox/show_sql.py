"""Prints a statement of the engine, ready for EXPLAIN in psql: ``make sql ARGS=claim_due``."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

PARAMS: dict[str, Any] = {
    "key_shard_scope": "{0}",
    "key_shard_identifier": "{1}",
    "key_cell_name": "{us}",
    "owner": "psql",
    "token": 1,
    "tokens": [1],
    "lease": 15,
    "handling": 1,
    "heed": True,
    "most": 512,
    "scope": -1,
    "identifier": 0,
    "cell": "us",
    "afters": "{0}",
    "after": 0,
    "bound": 2**63 - 1,
    "passed": 0,
    "first": 1,
    "only": None,
    "off": [],
    "off_scopes": [],
    "off_cells": [],
    "off_lanes": [],
    "off_shard_scopes": [],
    "off_shards": [],
    "categories": "{1}",
    "objects": "{1}",
    "ns": "{0}",
    "ids": [1],
    "parked_ids": [1],
    "failure_ids": [1],
    "park_ids": [1],
    "reason": "held",
    "delay": None,
    "park_error": None,
    "level": 2,
    "category": 1,
    "object": 1,
    "message_id": 1,
    "attempts": 1,
    "delay_s": 1.0,
    "crashed": False,
    "error": "",
    "traceback": "",
    "delayed_too": False,
    "known": [1],
    "ordered": [1],
    "not_finished": "started, not finished",
}
"""A value for each parameter: as if one shard with one message were meant."""


def ready(name: str, *, control: bool = False) -> str:
    """Return a statement of a cell's or control's outbox with values in place of its parameters.

    Raises:
        KeyError: there is no such statement.
    """
    from psycopg.sql import Literal

    from hybridcloud.outbox import CellOutbox, ControlOutbox
    from hybridcloud.outbox.store.templates import fragments, sql

    words = {"conflict": "{key}, category, object_identifier", "level": "2"}
    words |= {"switched": "false", "which": fragments()["held"] if name == "bring_back" else "true"}
    text = sql((ControlOutbox if control else CellOutbox).tables(), name, **words)
    filled = re.sub(r"%\((\w+)\)s", lambda match: Literal(PARAMS[match[1]]).as_string(None), text)
    return filled.replace("%%", "%")


def main() -> None:
    """Print one statement, or the names of all."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fixtures.settings.test")
    django.setup()
    from hybridcloud.outbox.store.templates import statements

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(statements()))
    parser.add_argument("--control", action="store_true", help="of control's outbox")
    arguments = parser.parse_args()
    if arguments.name is None:
        print("\n".join(sorted(statements())))  # noqa: T201 - a program that talks to people
        return
    print(f"{ready(arguments.name, control=arguments.control)};")  # noqa: T201


if __name__ == "__main__":
    main()
