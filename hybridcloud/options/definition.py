"""The registered options: their keys, types and defaults.

An unknown key is an error, so that a typo is not a switch without effect.
"""

from __future__ import annotations

import difflib
import json
import re
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hybridcloud.errors import ConfigurationError, OptionValueError, UnknownOptionError
from hybridcloud.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TYPES: Final = (bool, int, float, str, list, dict)


@dataclass(frozen=True, slots=True)
class Definition:
    """A registered option.

    Attributes:
        key: its name, or a pattern with ``*`` for the part that differs.
        type: the type of its values, one that JSON has.
        default: the value if none is set; may be None.
        doc: one sentence for the person who sets it.
        validate: raises ValueError for a value that has the type and makes no sense.
    """

    key: str
    type: type
    default: Any
    doc: str = ""
    validate: Callable[[Any], None] | None = None

    def accepts(self, value: object) -> bool:
        """Return whether the value has the option's type and fits into JSON."""
        if isinstance(value, bool) and self.type is not bool:
            return False
        if not isinstance(value, (int, float) if self.type is float else self.type):
            return False
        return self.type not in (list, dict, float, str) or _fits_json(value)

    def fresh_default(self) -> Any:
        """Return the default; a list or dict is a copy that may be changed."""
        return deepcopy(self.default)


_definitions: Registry[str, Definition] = Registry("runtime option")
_patterns: Registry[str, Definition] = Registry("pattern of runtime options")
_expressions: dict[str, re.Pattern[str]] = {}


def register(
    key: str,
    type_: type,
    default: Any,
    *,
    doc: str = "",
    validate: Callable[[Any], None] | None = None,
) -> None:
    """Declare a runtime option; declaring the same one again does nothing.

    Args:
        key: its dotted name, such as ``"acme.limit"``.
        type_: bool, int, float, str, list or dict.
        default: the value if none is set: of this type, or None.
        doc: one sentence for the person who sets it.
        validate: called with a value of the type before it is set, and by checks; raises
            ValueError that says what is wrong and what would be right. What is stored already is
            not asked again: code that reads it must bear a bad value.

    Raises:
        ConfigurationError: the type is not a type of JSON, the default has another type, or the
            key is a pattern.
        RegistryError: the key is registered with another type or default.
    """
    if "*" in key:
        raise ConfigurationError(
            f"Wildcard in the key of runtime option {key!r}. Use register_pattern()."
        )
    _add(_definitions, Definition(key, type_, default, doc, validate))


def register_pattern(pattern: str, type_: type, default: Any, *, doc: str = "") -> None:
    """Declare all options whose keys match a pattern.

    For keys that are derived from models.

    Args:
        pattern: a key with ``*`` for any text, such as ``"outbox_replication.*.replication_version"``.
        type_: bool, int, float, str, list or dict.
        default: the value if none is set: of this type, or None.
        doc: one sentence for the person who sets it.

    Raises:
        ConfigurationError: the type is not a type of JSON, or the default has another type.
        RegistryError: the pattern is registered with another type or default.
    """
    _add(_patterns, Definition(pattern, type_, default, doc))
    _expressions[pattern] = re.compile(re.escape(pattern).replace(r"\*", ".+"))


def find_definition(key: str) -> Definition:
    """Return the definition for a key.

    Raises:
        UnknownOptionError: the key is not registered; the message lists near matches.
    """
    found = _definitions.get(key)
    if found is not None:
        return found
    for pattern, expression in _expressions.items():
        made = _patterns.get(pattern)
        if made is not None and expression.fullmatch(key):
            return Definition(key, made.type, made.default, made.doc)
    near = difflib.get_close_matches(key, [*_definitions, *_patterns], n=3, cutoff=0.5)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?"
        if near
        else "Register it with options.register()."
    )
    raise UnknownOptionError(f"Unknown runtime option {key!r}. {hint}")


def all_definitions() -> Iterator[Definition]:
    """Yield the options that are registered by their full key, not a pattern."""
    yield from _definitions.values()


def require_accepted(definition: Definition, value: object, *, where: str) -> None:
    """Refuse a value that the option cannot have.

    Raises:
        OptionValueError: the message names the option, the value and `where` it was given.
    """
    if not definition.accepts(value):
        raise OptionValueError(
            f"Wrong value {value!r} of runtime option {definition.key!r} {where}. "
            f"Give it a JSON value of type {definition.type.__name__}."
        )
    if definition.validate is None or value is None:
        return
    try:
        definition.validate(value)
    except ValueError as exc:
        raise OptionValueError(
            f"Wrong value of runtime option {definition.key!r} {where}: {exc}."
        ) from exc


def _add(registry: Registry[str, Definition], made: Definition) -> None:
    if made.type not in _TYPES:
        names = ", ".join(each.__name__ for each in _TYPES)
        raise ConfigurationError(
            f"Wrong type {made.type!r} of runtime option {made.key!r}. Use one of {names}."
        )
    if made.default is not None and not made.accepts(made.default):
        raise ConfigurationError(
            f"Wrong default {made.default!r} of runtime option {made.key!r}. Give it a value of "
            f"type {made.type.__name__}, or None."
        )
    present = registry.get(made.key)
    if present is None or (present.type, present.default) != (made.type, made.default):
        registry.add(made.key, made)


def _fits_json(value: object) -> bool:
    try:
        # PostgreSQL's jsonb accepts neither NaN nor the character NUL.
        return "\\u0000" not in json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
