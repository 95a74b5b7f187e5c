"""Options are set per silo, with a history, and pinned by settings; without it nobody knew who stopped a shard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from django.db import transaction

from hybridcloud import options
from hybridcloud.errors import OptionValueError, UnknownOptionError
from hybridcloud.options import cache
from hybridcloud.options.models import Option
from hybridcloud.options.values import history, states
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .keys import LIMIT, NAMES, RATIO, RULES, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _in_us() -> Iterator[None]:
    with assume_silo(SiloMode.CELL, cell="us"):
        yield


def test_an_option_that_is_not_set_has_its_default() -> None:
    assert options.get(LIMIT) == 5


def test_an_option_that_is_set_has_its_value() -> None:
    options.set(LIMIT, 6)
    options.set(LIMIT, 7)
    assert options.get(LIMIT) == 7


def test_an_option_that_is_unset_has_its_default_again() -> None:
    options.set(LIMIT, 6)
    options.delete(LIMIT)
    assert options.get(LIMIT) == 5


def test_an_unknown_option_is_refused_everywhere() -> None:
    for call in (
        lambda: options.get("tests.limits"),
        lambda: options.set("tests.limits", 1),
        lambda: options.delete("tests.limits"),
        lambda: history("tests.limits"),
    ):
        with pytest.raises(UnknownOptionError, match="Did you mean"):
            call()


def test_a_value_of_a_wrong_type_is_not_stored() -> None:
    with pytest.raises(OptionValueError, match=r"in options\.set\(\)"):
        options.set(LIMIT, "6")
    assert not Option.objects.exists()


def test_a_whole_number_of_a_float_is_a_float() -> None:
    options.set(RATIO, 1)
    assert isinstance(options.get(RATIO), float)


def test_each_silo_has_its_own_value() -> None:
    options.set(LIMIT, 6)
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert options.get(LIMIT) == 5
    with assume_silo(SiloMode.CONTROL):
        options.set(LIMIT, 8)
    assert options.get(LIMIT) == 6


def test_a_change_of_what_was_got_changes_nothing_for_others() -> None:
    options.get(NAMES).append("ada")
    options.get(RULES)["strict"] = False
    assert options.get(NAMES) == []
    assert options.get(RULES) == {"strict": True}
    options.set(NAMES, ["ada"])
    options.get(NAMES).append("bob")
    assert options.get(NAMES) == ["ada"]


def test_settings_pin_an_option() -> None:
    options.set(LIMIT, 6)
    with override_options({LIMIT: 9}):
        assert options.get(LIMIT) == 9
        with pytest.raises(OptionValueError, match=r"Pinned option 'tests\.limit'"):
            options.set(LIMIT, 7)
        with pytest.raises(OptionValueError, match="Take it out of the settings"):
            options.delete(LIMIT)
    assert options.get(LIMIT) == 6


def test_settings_that_pin_to_a_wrong_type_are_refused() -> None:
    with (
        pytest.raises(OptionValueError, match=r"'nine'.*in HYBRIDCLOUD\['OPTIONS'\]"),
        override_options({LIMIT: "nine"}),
    ):
        pass


def test_a_rolled_back_change_is_none() -> None:
    options.set(LIMIT, 6)
    with transaction.atomic(using="cell_us"):
        options.set(LIMIT, 7)
        assert options.get(LIMIT) == 7
        transaction.set_rollback(True, using="cell_us")
    assert options.get(LIMIT) == 6
    assert [each.value for each in history(LIMIT)] == [6]


def test_history_tells_who_when_and_why_newest_first() -> None:
    options.set(LIMIT, 6, by="ada", reason="a busy day")
    options.set(NAMES, ["x"], by="bob")
    options.delete(LIMIT, by="eve", reason="over")
    options.delete(LIMIT, by="eve", reason="nothing to unset")
    assert [(c.key, c.value, c.by, c.reason) for c in history()] == [
        (LIMIT, None, "eve", "over"),
        (NAMES, ["x"], "bob", ""),
        (LIMIT, 6, "ada", "a busy day"),
    ]
    assert [c.value for c in history(LIMIT)] == [None, 6]
    assert [c.key for c in history(limit=1)] == [LIMIT]
    assert history()[0].at.tzinfo is not None


def test_a_stored_value_of_another_type_gives_the_default_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Option.objects.create(key=LIMIT, value="many")
    cache.forget("cell_us")
    with caplog.at_level(logging.WARNING, "hybridcloud.options"):
        assert [options.get(LIMIT), options.get(LIMIT)] == [5, 5]
    assert caplog.messages == [
        "Stored value 'many' of option 'tests.limit' is not of type int, using its default"
    ]


def test_all_names_registered_options_and_derived_ones_that_are_set() -> None:
    options.set(VERSION.format("acme_user"), 3)
    Option.objects.create(key="tests.of_another_release", value=1)
    with override_options({NAMES: ["ada"]}):
        found = options.all()
    assert found[LIMIT] == 5
    assert found[NAMES] == ["ada"]
    assert found["tests.acme_user.version"] == 3
    assert "tests.of_another_release" not in found
    assert "tests.*.version" not in found


def test_the_state_of_an_option_says_where_its_value_comes_from() -> None:
    options.set(LIMIT, 6, by="ada", reason="a busy day")
    with override_options({NAMES: ["ada"]}):
        found = {state.key: state for state in states()}
    assert (found[LIMIT].source, found[LIMIT].value, found[LIMIT].default) == ("database", 6, 5)
    assert (found[LIMIT].by, found[LIMIT].reason, found[LIMIT].doc) == (
        "ada",
        "a busy day",
        "How many at once.",
    )
    assert found[LIMIT].updated_at is not None
    assert (found[NAMES].source, found[NAMES].value) == ("settings", ["ada"])
    assert (found[RATIO].source, found[RATIO].type) == ("default", "float")


def test_setting_again_moves_the_time() -> None:
    options.set(LIMIT, 6)
    Option.objects.update(updated_at="2020-01-01T00:00:00Z")
    options.set(LIMIT, 7, by="bob")
    row = Option.objects.get(key=LIMIT)
    assert (row.value, row.by, row.updated_at.year > 2020) == (7, "bob", True)
