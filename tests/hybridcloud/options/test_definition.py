"""An option has a type, a default and one meaning; without it a mistyped switch would switch nothing."""

from __future__ import annotations

from typing import Any

import pytest

from hybridcloud import options
from hybridcloud.errors import (
    ConfigurationError,
    OptionValueError,
    RegistryError,
    UnknownOptionError,
)
from hybridcloud.options.definition import find_definition, require_accepted

from .keys import LIMIT, NAMES, RATIO, RULES, VERSION


def test_a_key_that_nobody_registered_is_refused_with_the_near_ones() -> None:
    with pytest.raises(UnknownOptionError, match=r"'tests\.limits'\. Did you mean 'tests\.limit'"):
        find_definition("tests.limits")


def test_a_key_that_is_like_no_other_is_refused_with_advice() -> None:
    with pytest.raises(UnknownOptionError, match=r"'zzz'\. Register it with options\.register"):
        find_definition("zzz")


def test_a_derived_key_is_known_by_its_pattern() -> None:
    found = find_definition(VERSION.format("acme_user"))
    assert (found.key, found.type, found.default) == ("tests.acme_user.version", int, 0)


@pytest.mark.parametrize("key", ["tests..version", "tests.acme.version.more", "a.tests.b.version"])
def test_a_pattern_matches_whole_keys_only(key: str) -> None:
    with pytest.raises(UnknownOptionError):
        find_definition(key)


def test_the_same_registration_twice_is_one() -> None:
    options.register(LIMIT, int, 5, doc="Other words.")
    options.register_pattern("tests.*.version", int, 0)


def test_another_registration_of_a_key_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"Duplicate runtime option 'tests\.limit'"):
        options.register(LIMIT, int, 6)


@pytest.mark.parametrize(("type_", "default"), [(int, "5"), (int, True), (list, ()), (str, 1)])
def test_a_default_of_another_type_is_refused(type_: type, default: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Wrong default .* 'tests\.wrong'"):
        options.register("tests.wrong", type_, default)


def test_a_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Wrong type <class 'set'>.*Use one of bool, int"):
        options.register("tests.wrong", set, None)


def test_a_wildcard_in_a_single_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="register_pattern"):
        options.register("tests.*", int, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (LIMIT, True),
        (LIMIT, 1.5),
        (LIMIT, None),
        (RATIO, float("nan")),
        (NAMES, "ada"),
        (NAMES, [{1, 2}]),
        (RULES, {"a": "\0"}),
        (RULES, [1]),
    ],
)
def test_a_value_of_another_type_or_none_of_json_is_refused(key: str, value: Any) -> None:
    with pytest.raises(OptionValueError, match=f"Wrong value .* of runtime option '{key}'"):
        require_accepted(find_definition(key), value, where="here")


@pytest.mark.parametrize(
    ("key", "value"), [(LIMIT, 0), (RATIO, 1), (NAMES, [None, {"a": 1}]), (RULES, {})]
)
def test_values_of_the_type_are_accepted(key: str, value: Any) -> None:
    require_accepted(find_definition(key), value, where="here")
