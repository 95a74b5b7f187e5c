"""Mistakes in settings are found before they do harm; without it a mistyped option would stay unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks

from hybridcloud.checks.configuration import (
    check_pinned_options,
    check_rotation,
    check_secret_strength,
    check_settings,
)
from hybridcloud.outbox.store.switches import DISABLED_USERS

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

STRONG = "kR2vQ8mZ4tY7wB1nC6xD9pF3sG5hJ0la"
OTHER = "Lq7Rz1Xw9Tn3Vb5Ym2Kc8Pd4Gf6Hs0Ja"


def configure(settings: SettingsWrapper, **keys: Any) -> None:
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, **keys}


def found(check: Any) -> list[tuple[str, str]]:
    return [(message.id, message.msg) for message in check()]


def test_acmes_settings_have_no_findings() -> None:
    assert check_settings() == []
    assert check_pinned_options() == []


def test_e001_an_unknown_key_with_the_near_one(settings: SettingsWrapper) -> None:
    configure(settings, FLUSHH="sync")
    ((identifier, text),) = found(check_settings)
    assert identifier == "hybridcloud.E001"
    assert "'FLUSHH'" in text
    assert "Did you mean 'FLUSH'" in text


@pytest.mark.parametrize(
    "keys", [{"FLUSH": "sometimes"}, {"LEASE": -1}, {"OUTBOX_MODELS": {"MOON": []}}]
)
def test_e002_a_wrong_value(settings: SettingsWrapper, keys: dict[str, Any]) -> None:
    configure(settings, **keys)
    assert [identifier for identifier, _ in found(check_settings)] == ["hybridcloud.E002"]


def test_e002_settings_that_are_no_dict(settings: SettingsWrapper) -> None:
    settings.HYBRIDCLOUD = [("FLUSH", "sync")]
    assert [identifier for identifier, _ in found(check_settings)] == ["hybridcloud.E002"]


def test_e001_a_pinned_option_that_nobody_registered(settings: SettingsWrapper) -> None:
    configure(settings, OPTIONS={"hybridcloud.disabled_shard": []})
    ((identifier, text),) = found(check_pinned_options)
    assert identifier == "hybridcloud.E001"
    assert "Did you mean 'hybridcloud.disabled_shards'" in text


def test_e002_an_option_pinned_to_a_wrong_type(settings: SettingsWrapper) -> None:
    configure(settings, OPTIONS={DISABLED_USERS: 7})
    ((identifier, text),) = found(check_pinned_options)
    assert identifier == "hybridcloud.E002"
    assert "type list" in text


def test_options_of_unreadable_settings_are_left_to_the_other_check(
    settings: SettingsWrapper,
) -> None:
    configure(settings, FLUSHH="sync", RPC_SECRETS=["short"])
    assert check_pinned_options() == []
    assert check_secret_strength() == []
    assert check_rotation() == []


def test_e030_no_secret_in_a_silo_of_several(settings: SettingsWrapper) -> None:
    configure(settings, RPC_SECRETS=[], SILO_MODE="CONTROL")
    assert found(check_secret_strength) == [
        (
            "hybridcloud.E030",
            "No RPC secret: this silo can neither call other silos nor be called.",
        )
    ]
    configure(settings, SILO_MODE="MONOLITH")
    assert check_secret_strength() == []


@pytest.mark.parametrize(
    ("secret", "weakness"),
    [
        ("", "has fewer than 32 characters"),
        (STRONG[:31], "has fewer than 32 characters"),
        ("abcdefg" * 5, "has fewer than 8 different characters"),
        ("change-me-" + STRONG, "looks like a placeholder"),
        ("Example-" + STRONG, "looks like a placeholder"),
    ],
)
def test_e030_a_weak_secret_is_told_by_its_place_and_never_shown(
    settings: SettingsWrapper, secret: str, weakness: str
) -> None:
    configure(settings, RPC_SECRETS=[STRONG, secret])
    ((identifier, text),) = found(check_secret_strength)
    assert identifier == "hybridcloud.E030"
    assert text == f"RPC secret 2 of 2 {weakness}."


def test_e030_and_w033_accept_two_strong_secrets(settings: SettingsWrapper) -> None:
    configure(settings, RPC_SECRETS=lambda: [STRONG, OTHER])
    assert check_secret_strength() == []
    assert check_rotation() == []


@pytest.mark.parametrize("secrets", [STRONG, [STRONG], lambda: STRONG])
def test_w033_one_secret_alone(settings: SettingsWrapper, secrets: Any) -> None:
    configure(settings, RPC_SECRETS=secrets)
    assert [identifier for identifier, _ in found(check_rotation)] == ["hybridcloud.W033"]


def test_secrets_are_looked_at_before_a_deploy_only(settings: SettingsWrapper) -> None:
    configure(settings, RPC_SECRETS=["short"])
    now = {message.id for message in run_checks(tags=["hybridcloud"])}
    deploy = {
        message.id for message in run_checks(tags=["hybridcloud"], include_deployment_checks=True)
    }
    assert deploy - now == {"hybridcloud.E030", "hybridcloud.W033"}
