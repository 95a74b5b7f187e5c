"""The texts of the engine's statements, from ``sql/*.sql``.

A statement names tables and columns by words in braces, which are filled in for each outbox
table. `make sql ARGS=claim_due` prints one that is ready for ``EXPLAIN``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.outbox.store.state import Level, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridcloud.outbox.store.tables import TableNames

COLUMN_TYPES: Final = {"cell_name": "text", "shard_scope": "integer", "shard_identifier": "bigint"}
"""The types of the sharding columns."""
_FOLDER: Final = Path(__file__).with_name("sql")
_FRAGMENTS: Final = "fragments.sql"
_ALIASES: Final = "oklfpgcsqdh"
# The fields of `coalesce.Message`. Times are text: most are never read as datetimes.
_MESSAGE: Final = (
    "o.id, o.category, o.object_identifier, o.payload::text, "
    "CASE WHEN o.scheduled_for <> o.date_added THEN o.scheduled_for::text END, "
    "o.date_added::text, o.headers::text, "
    "date_part('epoch', clock_timestamp() - greatest(o.date_added, o.scheduled_for))"
)


def _parts(path: Path) -> dict[str, str]:
    """Return the named texts of a file, without their comments."""
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n?", "", body, flags=re.MULTILINE).strip()
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@cache
def fragments() -> Mapping[str, str]:
    """Return the parts of statements by name; each may use those before it."""
    return _parts(_FOLDER / _FRAGMENTS)


@cache
def statements() -> Mapping[str, str]:
    """Return the statements by name, with words in braces."""
    files = sorted(path for path in _FOLDER.glob("*.sql") if path.name != _FRAGMENTS)
    return {name: text for path in files for name, text in _parts(path).items()}


@cache
def sql(tables: TableNames, name: str, *, one: bool = False, off: bool = True, **more: str) -> str:
    """Return a named statement for these tables, with more words if given.

    With ``one`` for a single shard; with ``off`` heeding shards and scopes that a switch stops.
    """
    words = _words(tables, one=one)
    words.update((word, text.format(**words)) for word, text in more.items() if word != "which")
    for word, text in fragments().items():
        if word == "not_off":
            words[word] = f"{text.format(**words)} " if off else ""
        elif "{switched}" not in text or "switched" in words:
            words[word] = text.format(**words)
    if "which" in more:
        words["which"] = more["which"].format(**words)
    return statements()[name].format(**words)


def _words(tables: TableNames, *, one: bool) -> dict[str, Any]:
    columns = tables.sharding_columns
    arrays = [f"%(key_{column})s::{COLUMN_TYPES[column]}[]" for column in columns]
    one_values = [f"({array})[1]" for array in arrays]
    one_key, all_keys = ", ".join(one_values), ", ".join(arrays)
    control = "cell_name" in columns
    # As `ShardKey` has them: the cell last.
    in_order = (*columns[-2:], *columns[:-2])
    words: dict[str, Any] = {
        **tables._asdict(),
        "key": ", ".join(columns),
        "shard": ", ".join(in_order),
        "arrays": all_keys,
        "one_key": one_key,
        # The planner turns the values of a single row into constants.
        "keys": f"{f'(SELECT {one_key})' if one else f'unnest({all_keys})'} k({', '.join(columns)})",
        "o_message": _MESSAGE,
        "in_cell": "cell_name = %(cell)s AND " if control else "",
        "cell_value": "%(cell)s::text AS cell_name, " if control else "",
        **{f"{each.name.lower()}_level": str(each.value) for each in Level},
        **{f"is_{each.name.lower()}_reason": f"reason = '{each.value}'" for each in Reason},
    }
    for alias in _ALIASES:
        qualified = [f"{alias}.{column}" for column in columns]
        words[f"{alias}_key"] = ", ".join(qualified)
        words[f"{alias}_shard"] = ", ".join(f"{alias}.{column}" for column in in_order)
        words[f"{alias}_in_shard"] = _in_shard(qualified, [f"k.{column}" for column in columns])
        words[f"{alias}_in_one"] = _in_shard(qualified, one_values)
        words[f"{alias}_of_keys"] = " AND ".join(
            f"{column} = ANY({array})" for column, array in zip(qualified, arrays, strict=True)
        )
        words[f"{alias}_key_text"] = f"concat_ws(':', {', '.join(qualified)})"
        words[f"{alias}_in_cell"] = f"{alias}.cell_name = %(cell)s AND " if control else ""
        words[f"{alias}_cell_on"] = (
            f"{alias}.cell_name <> ALL(%(off_cells)s::text[]) AND "
            f"concat_ws(':', {alias}.cell_name, {alias}.shard_scope) <> ALL(%(off_lanes)s::text[])"
            if control
            else "true"
        )
    return words


def _in_shard(columns: Sequence[str], values: Sequence[str]) -> str:
    """Return a condition that only the shard index serves."""
    # The last column is a range: for an equality the planner might take the primary key and walk it
    # from end to end, if the statistics were made while one shard was hot.
    equal = [f"{column} = {value}" for column, value in zip(columns, values, strict=True)]
    equal[-1] = f"{columns[-1]} BETWEEN {values[-1]} AND {values[-1]}"
    return " AND ".join(equal)
