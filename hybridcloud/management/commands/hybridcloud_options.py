"""The command `hybridcloud_options`: reads and sets runtime options."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from hybridcloud.errors import OptionValueError, UnknownOptionError
from hybridcloud.options import values
from hybridcloud.options.definition import find_definition, require_accepted
from hybridcloud.outbox.operate.depths import would_stop
from hybridcloud.outbox.store.switches import (
    DISABLED_ORGANIZATIONS,
    DISABLED_SHARDS,
    DISABLED_USERS,
    compile_switches,
)
from hybridcloud.outbox.store.tables import outbox_models
from silos import SiloMode, assume_silo
from silos.errors import SiloError
from silos.mode import get_current_silo
from silos.router import alias_for_model

if TYPE_CHECKING:
    from hybridcloud.options.values import OptionState

_VERSION: Final = 1
_USAGE: Final = 2


class Command(BaseCommand):
    """The command `hybridcloud_options`."""

    help = "Read and set runtime options of this silo. They take effect within seconds."

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the sub-commands."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        get = verbs.add_parser("get", help="print the value in force, as JSON")
        put = verbs.add_parser("set", help="set a value in the database")
        unset = verbs.add_parser(
            "unset", help="remove the value, so that the default applies again"
        )
        listing = verbs.add_parser("list", help="list all options and where their values come from")
        history = verbs.add_parser("history", help="list who changed what, when and why")
        for each in (get, put, unset):
            each.add_argument("key")
        put.add_argument("value", help="JSON; quotes are not needed if the option is a string")
        for each in (put, unset):
            each.add_argument("--by", default="", help="who makes the change; default: login name")
            each.add_argument("--reason", default="", help="why, for the history")
            each.add_argument("--dry-run", action="store_true", help="only say what would change")
        history.add_argument("key", nargs="?")
        history.add_argument("--limit", type=int, default=100)
        for each in (get, put, unset, listing, history):
            each.add_argument("--json", action="store_true", help="print one JSON document")
            each.add_argument(
                "--silo",
                help="control or a cell's name, if one process is several; default: this silo",
            )

    def handle(self, *, verb: str, silo: str | None, **options: Any) -> None:
        """Run one verb in its silo.

        Raises:
            CommandError: the option or silo is unknown, or the option cannot have the value.
        """
        try:
            if silo is None:
                self._run(verb, options)
                return
            control = silo.lower() == "control"
            mode = SiloMode.CONTROL if control else SiloMode.CELL
            with assume_silo(mode, cell=None if control else silo):
                self._run(verb, options)
        except (UnknownOptionError, OptionValueError, SiloError) as exc:
            raise CommandError(str(exc), returncode=_USAGE) from exc

    def _run(self, verb: str, options: dict[str, Any]) -> None:
        runners = {
            "get": self._get,
            "set": self._set,
            "unset": self._unset,
            "list": self._list,
            "history": self._history,
        }
        runners[verb](options)

    def _get(self, options: dict[str, Any]) -> None:
        state = _state(options["key"])
        if options["json"]:
            self._print_json(option=asdict(state))
        else:
            self.stdout.write(_shown(state.value))

    def _set(self, options: dict[str, Any]) -> None:
        key, value = options["key"], _parsed(options["key"], options["value"])
        before = _state(key).value
        if not options["dry_run"]:
            values.set(key, value, by=_who(options), reason=options["reason"])
        self._report(options, before=before, after=value)

    def _unset(self, options: dict[str, Any]) -> None:
        key = options["key"]
        before = _state(key).value
        if not options["dry_run"]:
            values.delete(key, by=_who(options), reason=options["reason"])
        self._report(options, before=before, after=find_definition(key).fresh_default())

    def _list(self, options: dict[str, Any]) -> None:
        found = values.states()
        if options["json"]:
            self._print_json(options=[asdict(state) for state in found])
            return
        for state in found:
            where = state.source if not state.by else f"{state.source}, by {state.by}"
            self.stdout.write(f"{state.key} = {_shown(state.value)}  ({where})")
            if state.doc:
                self.stdout.write(f"    {state.doc}")

    def _history(self, options: dict[str, Any]) -> None:
        found = values.history(options["key"], limit=options["limit"])
        if options["json"]:
            self._print_json(history=[asdict(change) for change in found])
            return
        for change in found:
            what = "unset" if change.value is None else f"= {_shown(change.value)}"
            reason = f": {change.reason}" if change.reason else ""
            self.stdout.write(
                f"{change.at.isoformat(timespec='seconds')} {change.key} {what}"
                f"  by {change.by or '(not recorded)'}{reason}"
            )

    def _report(self, options: dict[str, Any], *, before: Any, after: Any) -> None:
        changed = {"key": options["key"], "before": before, "after": after}
        stops = _would_stop(options["key"], after) if options["dry_run"] else None
        if options["json"]:
            more = {} if stops is None else {"would_stop": stops}
            self._print_json(**changed, dry_run=options["dry_run"], **more)
            return
        would = "would be " if options["dry_run"] else ""
        self.stdout.write(f"{options['key']} {would}{_shown(after)} (was {_shown(before)})")
        if stops is not None:
            self.stdout.write(
                f"It would stop {stops['messages']} messages of {stops['shards']} shards."
            )

    def _print_json(self, **document: Any) -> None:
        text = json.dumps({"version": _VERSION, **document}, cls=DjangoJSONEncoder)
        self.stdout.write(text)


def _would_stop(key: str, value: Any) -> dict[str, int] | None:
    """Count what a kill switch would stop here; None: it is none."""
    if key not in (DISABLED_SHARDS, DISABLED_ORGANIZATIONS, DISABLED_USERS):
        return None
    switches = compile_switches(key, value)
    tables = outbox_models(get_current_silo().mode)
    found = [would_stop(outbox, alias_for_model(outbox), switches) for outbox in tables]
    return {"shards": sum(each for each, _ in found), "messages": sum(each for _, each in found)}


def _state(key: str) -> OptionState:
    definition = find_definition(key)
    for state in values.states():
        if state.key == key:
            return state
    # A key of a pattern is not among the states while it is not set.
    default = definition.fresh_default()
    return values.OptionState(
        key, default, "default", definition.type.__name__, default, definition.doc
    )


def _parsed(key: str, text: str) -> Any:
    definition = find_definition(key)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        if definition.type is not str:
            raise OptionValueError(
                f"Wrong value {text!r} of runtime option {key!r}: not valid JSON ({exc}). "
                f"Give it a JSON value of type {definition.type.__name__}."
            ) from exc
        value = text
    if definition.type is str and not isinstance(value, str):
        value = text
    require_accepted(definition, value, where="on the command line")
    return value


def _who(options: dict[str, Any]) -> str:
    if options["by"]:
        return str(options["by"])
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user may have no name.
        return ""


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
