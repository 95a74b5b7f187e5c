"""A receiver that would break with the next release is found; without it an upgrade would stop every shard."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.acme import outbox_receivers
from fixtures.acme.categories import Category
from hybridcloud.checks.handlers import check_receivers, check_senders, receivers_of
from hybridcloud.outbox import process_cell_outbox, process_control_outbox


def narrow(
    payload: Any, object_identifier: int, shard_identifier: int, shard_scope: int, signal: Any
) -> None:
    """Take what there is today."""


def listen_to_all(**_: Any) -> None:
    """Hear everything."""


def test_acmes_receivers_have_no_findings() -> None:
    assert check_receivers() == []


@pytest.mark.parametrize("signal", [process_cell_outbox, process_control_outbox])
def test_w009_a_receiver_without_kwargs(signal: Any) -> None:
    signal.connect(narrow, sender=Category.AUDIT_LOG_EVENT)
    try:
        (found,) = check_receivers()
    finally:
        signal.disconnect(narrow, sender=Category.AUDIT_LOG_EVENT)
    assert found.id == "hybridcloud.W009"
    assert found.obj is narrow
    assert found.msg == f"{__name__}.narrow, a receiver of AUDIT_LOG_EVENT, takes no **kwargs."


def test_what_hears_everything_is_no_categorys_own() -> None:
    process_cell_outbox.connect(listen_to_all)
    try:
        found = receivers_of(process_cell_outbox, Category.TEAM_UPDATE)
    finally:
        process_cell_outbox.disconnect(listen_to_all)
    assert found == [outbox_receivers.process_team_update]


def test_acmes_receivers_are_called() -> None:
    assert check_senders() == []


def test_e018_a_receiver_of_the_other_silos_signal() -> None:
    process_control_outbox.connect(listen_to_all, sender=Category.ORGANIZATION_MEMBER_UPDATE)
    try:
        (found,) = check_senders()
    finally:
        process_control_outbox.disconnect(listen_to_all, sender=Category.ORGANIZATION_MEMBER_UPDATE)
    assert (found.id, found.obj) == ("hybridcloud.E018", listen_to_all)
    assert "is never called: ORGANIZATION_MEMBER_UPDATE" in found.msg
    assert "whose messages are in cells" in found.msg


@pytest.mark.parametrize("signal", [process_cell_outbox, process_control_outbox])
def test_e018_a_receiver_without_a_sender(signal: Any) -> None:
    signal.connect(listen_to_all)
    try:
        (found,) = check_senders()
    finally:
        signal.disconnect(listen_to_all)
    assert (found.id, found.obj) == ("hybridcloud.E018", listen_to_all)
    assert "sender=" in str(found.hint)
