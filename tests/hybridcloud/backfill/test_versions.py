"""The version up to which a model is replicated: the lesser of option and code."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.acme.models import ApiToken, Organization, Team, User, UserReplica
from hybridcloud import options
from hybridcloud.backfill import find_replication_version
from hybridcloud.backfill.versions import (
    find_model,
    find_target_cells,
    models_of,
    require_integer_ids,
)
from hybridcloud.errors import ConfigurationError, OptionValueError, UnknownOptionError
from hybridcloud.options.definition import find_definition, require_accepted
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

KEY = "outbox_replication.acme_organization.replication_version"

pytestmark = pytest.mark.django_db


@pytest.fixture
def version_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code of organizations be at version 3."""
    monkeypatch.setattr(Organization, "replication_version", 3)


def test_nothing_is_to_be_replicated_until_the_option_is_set() -> None:
    assert options.get(KEY) == 0
    assert find_replication_version(Organization) == 0


@pytest.mark.parametrize(("gate", "version"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_the_version_is_the_lesser_of_option_and_code(
    version_three: None, gate: int, version: int
) -> None:
    with override_options({KEY: gate}):
        assert find_replication_version(Organization) == version


def test_forced_the_code_alone_decides(version_three: None) -> None:
    assert find_replication_version(Organization, force_synchronous=True) == 3
    assert find_replication_version(Organization, True) == 3


@pytest.mark.parametrize("model", [Organization, Team, User, ApiToken])
def test_the_options_of_every_producing_model_are_registered(model: type) -> None:
    table = model._meta.db_table  # type: ignore[attr-defined]
    found = options.all()
    assert found[f"outbox_replication.{table}.replication_version"] == 0
    assert found[f"outbox_replication.{table}.backfill.paused"] is False


def test_a_table_that_nobody_replicates_has_no_option() -> None:
    with pytest.raises(UnknownOptionError):
        options.set("outbox_replication.acme_organisation.replication_version", 1)
    with pytest.raises(OptionValueError):
        options.set(KEY, "one")


def test_only_control_models_can_be_limited_to_cells() -> None:
    with override_options({"outbox_replication.acme_user.backfill.target_cells": ["eu"]}):
        assert find_target_cells(User) == {"eu"}
    assert find_target_cells(User) is None
    assert find_target_cells(Organization) is None
    assert "outbox_replication.acme_organization.backfill.target_cells" not in options.all()


def test_a_monolith_asks_the_options_of_the_models_own_silo() -> None:
    with assume_silo(SiloMode.CONTROL):
        options.set("outbox_replication.acme_user.replication_version", 1)
    with assume_silo(SiloMode.CELL, cell="us"):
        options.set(KEY, 1)
    assert find_replication_version(User) == 1
    assert find_replication_version(Organization) == 1
    with assume_silo(SiloMode.CELL, cell="eu"):
        assert find_replication_version(Organization) == 0


def test_models_are_found_by_label_and_by_table() -> None:
    assert find_model("acme.Organization") is Organization
    assert find_model("acme_organization") is Organization
    with pytest.raises(LookupError, match=r"No producing model or table 'acme\.UserReplica'"):
        find_model(UserReplica._meta.label)


def test_each_silo_has_its_own_models() -> None:
    assert Organization in models_of(SiloMode.CELL)
    assert User not in models_of(SiloMode.CELL)
    assert User in models_of(SiloMode.CONTROL)
    assert {User, Organization} <= set(models_of(SiloMode.MONOLITH))


def test_a_key_that_is_no_integer_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Organization._meta, "pk", Organization._meta.get_field("slug"))
    with pytest.raises(
        ConfigurationError,
        match=r"^No integer primary key: acme\.Organization\.slug is a SlugField",
    ):
        require_integer_ids(Organization)


@pytest.mark.parametrize(
    ("value", "cells"),
    [(["eu", "uss"], {"eu"}), (["uss"], set()), ([5, ["eu"], None], set()), ([], None)],
    ids=str,
)
def test_stored_target_cells_that_do_not_exist_never_mean_all(
    value: list[Any], cells: set[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with override_options({"outbox_replication.acme_user.backfill.target_cells": value}):
        assert find_target_cells(User) == cells
    assert ("do not exist" in caplog.text) == bool(value)


@pytest.mark.parametrize(
    ("value", "words"), [(["uss"], "Did you mean 'us'"), ([5], "5 is not the name of a cell")]
)
def test_target_cells_that_do_not_exist_are_refused(value: list[Any], words: str) -> None:
    definition = find_definition("outbox_replication.acme_user.backfill.target_cells")
    with pytest.raises(OptionValueError, match=words):
        require_accepted(definition, value, where="in a test")
