"""The command `deadletters`: lists, requeues and purges dead letters."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hybridcloud.management.places import add_silo_argument, chosen_silos
from hybridcloud.outbox.declare.category import all_categories, category_name
from hybridcloud.outbox.declare.scope import all_scopes, scope_name
from hybridcloud.outbox.operate import dead_letters as deadletters
from hybridcloud.outbox.store.tables import outbox_models
from silos import assume_silo
from silos.errors import SiloError
from silos.router import alias_for_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hybridcloud.outbox.operate.dead_letters import DeadLetter, Which
    from hybridcloud.outbox.store.tables import OutboxTable
    from silos.mode import CurrentSilo

_VERSION: Final = 1
_USAGE: Final = 2
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Command(BaseCommand):
    """The command `deadletters`."""

    help = "List, requeue or purge dead letters: messages that failed too often."

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the sub-commands."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        listing = verbs.add_parser("list", help="list dead letters and their errors, oldest first")
        listing.add_argument("--full", action="store_true", help="show whole tracebacks")
        requeue = verbs.add_parser(
            "requeue", help="put them back into the outbox, with fresh attempts"
        )
        purge = verbs.add_parser("purge", help="delete them permanently; asks first")
        for each in (listing, requeue, purge):
            _add_filters(each)
        for each in (requeue, purge):
            each.add_argument("--all", action="store_true", help="required if there is no filter")
            each.add_argument("--dry-run", action="store_true", help="only say what would be done")
        purge.add_argument("--no-input", action="store_true", help="do not ask for confirmation")

    def handle(self, *, verb: str, **options: Any) -> None:
        """Run one verb in each selected silo.

        Raises:
            CommandError: a name is unknown, or there is neither a filter nor --all.
        """
        which = _which(options)
        if verb != "list" and which == deadletters.Which() and not options["all"]:
            raise CommandError(
                f"No filter for deadletters {verb}: it would affect every dead letter. Use a filter, "
                f"such as --category or --id, or use --all.",
                returncode=_USAGE,
            )
        try:
            self._run(verb, which, options)
        except SiloError as exc:
            raise CommandError(str(exc), returncode=_USAGE) from exc

    def _run(self, verb: str, which: Which, options: dict[str, Any]) -> None:
        document: list[dict[str, Any]] = []
        for here, outbox, alias, found in _each(which, options):
            silo = here.cell or "control"
            changed = 0
            if (
                verb != "list"
                and not options["dry_run"]
                and found
                and self._agreed(verb, silo, found, options)
            ):
                act = deadletters.requeue if verb == "requeue" else deadletters.purge
                changed = act(outbox, alias, [letter.id for letter in found])
            document.append(
                {
                    "silo": silo,
                    "outbox": outbox._meta.label,
                    "found": [_as_json(letter) for letter in found],
                    "changed": changed,
                }
            )
            if not options["json"]:
                self._tell(verb, silo, outbox, found, changed, options)
        if options["json"]:
            dry_run = bool(options.get("dry_run"))
            self.stdout.write(
                json.dumps(
                    {"version": _VERSION, "verb": verb, "dry_run": dry_run, "outboxes": document}
                )
            )

    def _agreed(
        self, verb: str, silo: str, found: list[DeadLetter], options: dict[str, Any]
    ) -> bool:
        if verb != "purge" or options["no_input"]:
            return True
        answer = input(
            f"Delete {len(found)} dead letters in {silo} permanently? Their changes are lost. [y/N] "
        )
        return answer.strip().lower() in ("y", "yes")

    def _tell(
        self,
        verb: str,
        silo: str,
        outbox: type[OutboxTable],
        found: list[DeadLetter],
        changed: int,
        options: dict[str, Any],
    ) -> None:
        if verb == "list" or options["dry_run"]:
            for letter in found:
                self.stdout.write(_line(silo, letter, whole=bool(options.get("full"))))
        count, label = len(found), outbox._meta.label
        if verb == "list":
            if count:
                self.stdout.write(f"{silo}: {count} dead letters in {label}")
            return
        done = {"requeue": "requeued", "purge": "purged"}[verb]
        if options["dry_run"]:
            self.stdout.write(f"{silo}: {count} dead letters in {label} would be {done}")
        elif count:
            self.stdout.write(f"{silo}: {changed} of {count} dead letters in {label} {done}")


def _add_filters(parser: CommandParser) -> None:
    parser.add_argument(
        "--id", type=int, action="append", dest="ids", help="a message's id; can be repeated"
    )
    parser.add_argument("--category", help="name or number")
    parser.add_argument("--scope", help="name or number")
    parser.add_argument("--shard", type=int, help="shard identifier")
    parser.add_argument("--object", type=int, help="object identifier")
    parser.add_argument("--target-cell", help="target cell of control's messages")
    parser.add_argument(
        "--older-than",
        type=_seconds,
        metavar="AGE",
        help="dead-lettered at least this long ago: 30s, 2h, 7d",
    )
    parser.add_argument(
        "--limit", type=int, default=1000, help="at most this many per outbox (default 1000)"
    )
    add_silo_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _each(
    which: Which, options: dict[str, Any]
) -> Iterator[tuple[CurrentSilo, type[OutboxTable], str, list[DeadLetter]]]:
    for here in chosen_silos(options["silo"]):
        with ExitStack() as stack:
            stack.enter_context(assume_silo(here.mode, cell=here.cell))
            for outbox in outbox_models(here.mode):
                alias = alias_for_model(outbox)
                found = deadletters.find(outbox, alias, which, limit=options["limit"])
                yield here, outbox, alias, found


def _which(options: dict[str, Any]) -> Which:
    return deadletters.Which(
        ids=None if options["ids"] is None else tuple(options["ids"]),
        scope=_number(options["scope"], "scope", all_scopes()),
        shard=options["shard"],
        cell=options["target_cell"],
        category=_number(options["category"], "category", all_categories()),
        object_identifier=options["object"],
        older_than_s=options["older_than"],
    )


def _number(value: str | None, what: str, members: Iterable[Any]) -> int | None:
    if value is None or value.lstrip("-").isdecimal():
        return None if value is None else int(value)
    names = {member.name: int(member) for member in members}
    if value.upper() not in names:
        raise CommandError(
            f"No {what} {value!r}. There are: {', '.join(sorted(names))}.", returncode=_USAGE
        )
    return names[value.upper()]


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration. Write it like 30s, 5m, 2h or 7d.")
    return float(int(match[1]) * _UNITS[match[2]])


def _line(silo: str, letter: DeadLetter, *, whole: bool) -> str:
    error = (letter.error or "").strip()
    shown = f"\n{error}" if whole else error.splitlines()[-1] if error else "no error"
    where = ":".join(str(part) for part in letter.shard[-1:])
    return (
        f"{silo}: {letter.id} {category_name(letter.category)} object {letter.object_identifier} in "
        f"{scope_name(letter.shard[-2])}:{where}, dead-lettered "
        f"{letter.parked_at.isoformat(timespec='seconds')}: {shown}"
    )


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "shard": list(letter.shard),
        "category": category_name(letter.category),
        "object_identifier": letter.object_identifier,
        "error": letter.error,
        "date_added": letter.date_added.isoformat(),
        "parked_at": letter.parked_at.isoformat(),
    }
