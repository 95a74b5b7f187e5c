"""A mistyped kill switch: refused where it is set; stored, it stops nothing and widens nothing.

The kinds: entries that are no objects, empty ones, unknown members, scopes, categories and cells,
numbers as text, booleans and fractions as numbers, wildcards, everything in other words; of the
lists of organizations and users the same; a value of another type.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from hybridcloud import logs, options
from hybridcloud.checks.configuration import check_pinned_options
from hybridcloud.checks.models import check_switches
from hybridcloud.errors import ConfigurationError, OptionValueError
from hybridcloud.options import cache
from hybridcloud.options.models import Option
from hybridcloud.outbox import OutboxCategory, OutboxScope, scope_categories
from hybridcloud.outbox.declare.category import restored_declarations
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.switches import (
    DISABLED_ORGANIZATIONS,
    DISABLED_SHARDS,
    DISABLED_USERS,
)
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .engine import US, Kind, drain_us, ids, listening, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.usefixtures("committed")

WRONG: dict[str, tuple[Any, str]] = {
    "a misspelt member": ({"scop": 0}, "unknown 'scop'. Did you mean 'scope'"),
    "nothing": ({}, r"what stops everything is {\"all\": true}"),
    "a misspelt scope": ({"scope": "ORDERD"}, "Did you mean 'ORDERED'"),
    "an unknown number": ({"scope": 12345}, "scope 12345 is unknown"),
    "a misspelt category": ({"category": "ORDERD"}, "Did you mean 'ORDERED'"),
    "a number as text": ({"scope": "ORDERED", "identifier": "2"}, 'identifier "2" is not an'),
    "a boolean": ({"identifier": True}, "identifier true is not an integer"),
    "a fraction": ({"identifier": 5.7}, "identifier 5.7 is not an integer"),
    "too large a number": ({"identifier": 2**63}, "is not an integer"),
    "a boolean as scope": ({"scope": False}, "scope false is unknown"),
    "a name": ("ORDERED", r"is not an object, such as"),
    "a number": (5, "is not an object"),
    "null": (None, "is not an object"),
    "a list": (["ORDERED"], "is not an object"),
    "a wildcard": ({"scope": "*", "identifier": 2}, "an empty 'scope': leave out"),
    "an empty member": ({"scope": "ORDERED", "cell": ""}, "an empty 'cell'"),
    "a null member": ({"scope": "ORDERED", "cell": None}, "an empty 'cell'"),
    "a misspelt cell": ({"cell": "uss"}, "Did you mean 'us'"),
    "a list as scope": ({"scope": ["ORDERED"]}, "is unknown"),
    "everything, and more": ({"all": True, "scope": "ORDERED"}, "is unclear"),
    "everything as text": ({"all": "true"}, "is unclear"),
    "everything by a number": ({"all": 1}, "is unclear"),
}


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    logs.forget_limits()
    with assume_silo(SiloMode.CELL, cell="us"):
        yield
        cache.forget(US)


def _store(value: Any, key: str = DISABLED_SHARDS) -> None:
    """Store a value as an older release or a person with psql did."""
    Option.objects.using(US).update_or_create(key=key, defaults={"value": value})
    cache.forget(US)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_switch_is_refused_with_the_right_word(
    name: str, settings: SettingsWrapper
) -> None:
    entry, words = WRONG[name]
    with pytest.raises(OptionValueError) as caught:
        options.set(DISABLED_SHARDS, [{"scope": "ORDERED"}, entry])
    assert words.replace("\\", "") in str(caught.value)
    assert str(caught.value).startswith(
        "Wrong value of runtime option 'hybridcloud.disabled_shards'"
    )
    assert not Option.objects.using(US).exists()
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "OPTIONS": {DISABLED_SHARDS: [entry]}}
    assert [each.id for each in check_pinned_options()] == ["hybridcloud.E002"]


@pytest.mark.rule(5)
@pytest.mark.parametrize("where", ["stored", "pinned"])
def test_wrong_switches_stop_nothing_and_the_good_ones_hold(
    where: str, settings: SettingsWrapper, caplog: pytest.LogCaptureFixture
) -> None:
    value = [each for each, _ in WRONG.values()] + [{"scope": "ORDERED", "identifier": 1}]
    if where == "stored":
        _store(value)
    else:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "OPTIONS": {DISABLED_SHARDS: value}}
    put(Kind.ORDERED, shard=1, obj=1)
    for kind in (Kind.ORDERED, Kind.PLAIN, Kind.BY_OBJECT):
        put(kind, shard=2, obj=2)
    with listening(Kind.ORDERED, Kind.PLAIN, Kind.BY_OBJECT) as seen:
        drain_us()
        drain_us()
    assert seen.objects == [2, 2, 2]
    assert len(ids()) == 1
    said = [each for each in caplog.records if "without effect" in each.message]
    assert len(said) == len(WRONG), "each mistake is said once a minute"
    assert {each.levelname for each in said} == {"ERROR"}


@pytest.mark.rule(5)
@pytest.mark.parametrize("value", [{"scope": "PLAIN"}, "PLAIN", 5, True])
def test_a_stored_value_of_another_type_stops_nothing(value: Any) -> None:
    _store(value)
    put(obj=2)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [2]


@pytest.mark.rule(5)
def test_a_pinned_value_of_another_type_stops_nothing(settings: SettingsWrapper) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "OPTIONS": {DISABLED_SHARDS: "PLAIN"}}
    put(obj=2)
    with listening(Kind.PLAIN) as seen:
        drain_us()
    assert seen.objects == [2]


@pytest.mark.rule(5)
def test_everything_is_said_in_one_way() -> None:
    put(obj=2)
    with listening(Kind.PLAIN) as seen, override_options({DISABLED_SHARDS: [{"all": True}]}):
        drain_us()
    assert (seen.objects, len(ids())) == ([], 1)


@pytest.mark.parametrize("key", [DISABLED_ORGANIZATIONS, DISABLED_USERS])
@pytest.mark.parametrize("value", [["7"], [True], [5.7], [None], [{"id": 7}], [[7]]])
def test_a_wrong_organization_is_refused_and_stored_it_stops_nothing(key: str, value: Any) -> None:
    with pytest.raises(OptionValueError, match="is not an i"):
        options.set(key, value)
    _store([*value, 8], key)
    assert [each.identifier for each in kill_switches.current().shards] == [8] * _scopes_of(key)


def _scopes_of(key: str) -> int:
    from hybridcloud.outbox.declare.scope import all_scopes

    kind = "organization" if key == DISABLED_ORGANIZATIONS else "user"
    return sum(each.switch == kind for each in all_scopes())


@pytest.mark.rule(5)
@pytest.mark.parametrize(
    ("switch", "key"), [("organization", DISABLED_ORGANIZATIONS), ("user", DISABLED_USERS)]
)
def test_a_scope_says_which_list_stops_it(switch: Any, key: str, settings: SettingsWrapper) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "cron"}
    with restored_declarations():

        class Owned(OutboxCategory):
            OWNED = 9950

        class Owners(OutboxScope, categories=Owned):
            OWNERS = scope_categories(9950, {Owned.OWNED}, switch=switch)

        from hybridcloud.outbox import process_cell_outbox

        seen: list[int] = []

        def receive(*, shard_identifier: int, **_: Any) -> None:
            seen.append(shard_identifier)

        process_cell_outbox.connect(receive, sender=Owned.OWNED, weak=False)
        for shard in (7, 8):
            made = Owned.OWNED.as_cell_outbox(shard_identifier=shard, object_identifier=1)
            made.save(using=US)
        with override_options({key: [7]}):
            drain_us()
            assert seen == [8]
        drain_us()
        assert seen == [8, 7]
        process_cell_outbox.disconnect(receive, sender=Owned.OWNED)


def test_a_switch_that_is_none_of_the_two_is_refused_where_it_is_declared() -> None:
    with restored_declarations():

        class Owned(OutboxCategory):
            OWNED = 9950

        with pytest.raises(ConfigurationError, match=r"switch is 'team'\. Give 'organization' or"):

            class Owners(OutboxScope, categories=Owned):
                OWNERS = scope_categories(9950, {Owned.OWNED}, switch="team")  # type: ignore[arg-type]


@pytest.mark.parametrize("declared", [{"shard_key": "user_id"}, {"owner": "acme.User"}])
def test_a_check_names_scopes_that_no_switch_of_their_owners_stops(declared: Any) -> None:
    with restored_declarations():

        class Owned(OutboxCategory):
            OWNED = 9950

        class Owners(OutboxScope, categories=Owned):
            OWNERS = scope_categories(9950, {Owned.OWNED}, **declared)

        found = [each for each in check_switches() if each.obj is Owners.OWNERS]
        assert [each.id for each in found] == ["hybridcloud.W048"]
        assert 'switch="user"' in str(found[0].hint)


def test_a_dry_run_says_how_much_would_stop(capsys: pytest.CaptureFixture[str]) -> None:
    for shard in (1, 2):
        put(Kind.ORDERED, shard=shard, obj=1)
        put(Kind.ORDERED, shard=shard, obj=2)
    put(Kind.OTHER, shard=1, obj=1)
    for value, shards, messages in (
        ([{"scope": "ORDERED", "identifier": 1}], 1, 2),
        ([{"identifier": 1}], 2, 3),
        ([{"category": "OTHER"}], 1, 1),
        ([{"all": True}], 3, 5),
        ([], 0, 0),
    ):
        arguments = ("set", DISABLED_SHARDS, json.dumps(value), "--silo", "us", "--dry-run")
        call_command("hybridcloud_options", *arguments)
        wanted = f"It would stop {messages} messages of {shards} shards."
        assert wanted in capsys.readouterr().out
        call_command("hybridcloud_options", *arguments, "--json")
        document = json.loads(capsys.readouterr().out)
        assert document["would_stop"] == {"shards": shards, "messages": messages}
    assert not Option.objects.using(US).exists()


def test_the_migration_rewrites_what_older_releases_stored() -> None:
    module = import_module("hybridcloud.migrations.0006_switches")
    _store(
        [
            {},
            {"scope": "*"},
            {"scope": "ORDERED", "cell": None, "identifier": "2"},
            {"all": True},
            5,
        ]
    )

    class Editor:
        class connection:  # noqa: N801 - as Django's
            alias = US

    from django.apps import apps

    module.rewrite(apps, Editor)
    assert Option.objects.using(US).get(key=DISABLED_SHARDS).value == [
        {"all": True},
        {"all": True},
        {"scope": "ORDERED", "identifier": 2},
        {"all": True},
        5,
    ]
