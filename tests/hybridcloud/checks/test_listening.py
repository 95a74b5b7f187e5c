"""Notifications that nobody hears are found; without it a drainer behind a pooler would poll in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.conf import settings as django_settings
from django.core.checks import Tags, run_checks
from django.test import override_settings

from hybridcloud.checks import listening
from hybridcloud.checks.listening import check_listening

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db
ALL = ["control", "cell_us", "cell_eu"]


def conf(**more: object) -> override_settings:
    return override_settings(HYBRIDCLOUD={**django_settings.HYBRIDCLOUD, **more})


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(listening, "_WAIT", 0.3)
    return


def test_direct_connections_are_fine() -> None:
    with conf(KICK="notify"):
        assert check_listening(databases=ALL) == []


def test_w042_where_the_notification_does_not_arrive() -> None:
    # Another database hears as little as a session that a pooler has taken back.
    with conf(KICK="notify", LISTEN_DATABASE="control"):
        (found,) = check_listening(databases=["cell_us", "control"])
    assert found.id == "hybridcloud.W042"
    assert found.msg.startswith("NOTIFY on 'cell_us' is not heard by LISTEN on 'control'")


def test_e002_a_database_that_is_not_there() -> None:
    with conf(KICK="notify", LISTEN_DATABASE="direkt"):
        (found,) = check_listening(databases=["cell_us"])
    assert found.id == "hybridcloud.E002"
    assert found.msg.startswith("No database 'direkt'")


def test_it_is_no_matter_where_tasks_wake_the_drainers() -> None:
    with conf(LISTEN_DATABASE="control"):
        assert check_listening(databases=ALL) == []


def test_it_runs_for_the_databases_that_are_asked_for() -> None:
    with conf(KICK="notify", LISTEN_DATABASE="control"):
        assert check_listening() == []
        found = run_checks(tags=[Tags.database], databases=["cell_us"])
    assert "hybridcloud.W042" in {each.id for each in found}
