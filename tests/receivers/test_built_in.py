"""Messages reach the handlers of their models; without it replicated models would need a receiver each."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.acme import factories
from fixtures.acme.categories import Category
from fixtures.acme.models import (
    AuthProvider,
    Organization,
    OrganizationMapping,
    OrganizationMember,
    User,
)
from hybridcloud.checks.handlers import receivers_of
from hybridcloud.errors import OutboxFlushError
from hybridcloud.outbox import process_cell_outbox, process_control_outbox
from hybridcloud.outbox.declare.category import connected_models
from hybridcloud.testutils import drain_outboxes, outbox_runner
from hybridcloud.tombstones.models import CellTombstone, ControlTombstone
from receivers.outbox import cell, control
from receivers.outbox.built_in import ModelReceiver
from silos import SiloMode, assume_silo

pytestmark = pytest.mark.django_db


class Calls:
    """Handlers that remember what they are given, in the place of a model's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: type[Any]) -> None:
        self.replicated: list[Any] = []
        self.deleted: list[Any] = []
        calls = self

        def replicate(self: Any, **given: Any) -> None:
            calls.replicated.append((self, given))

        def remove(_: type[Any], **given: Any) -> None:
            calls.deleted.append(given)

        monkeypatch.setattr(model, "handle_async_replication", replicate)
        monkeypatch.setattr(model, "handle_async_deletion", classmethod(remove))


def test_every_replicated_model_has_its_receiver_in_its_silo() -> None:
    for category, signal in (
        (Category.ORGANIZATION_UPDATE, process_cell_outbox),
        (Category.USER_UPDATE, process_control_outbox),
    ):
        (receiver,) = receivers_of(signal, category)
        assert isinstance(receiver, ModelReceiver)
        assert receiver.model is connected_models.get(category)
    assert not process_control_outbox.has_listeners(Category.ORGANIZATION_UPDATE)
    assert not process_cell_outbox.has_listeners(Category.USER_UPDATE)


def test_connecting_again_connects_nothing_twice() -> None:
    cell.connect_models()
    control.connect_models()
    assert len([*receivers_of(process_cell_outbox, Category.ORGANIZATION_UPDATE)]) == 1
    assert len([*receivers_of(process_control_outbox, Category.USER_UPDATE)]) == 1


def test_a_change_in_a_cell_calls_the_row_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, Organization)
    with outbox_runner():
        organization = factories.create_organization("Old", cell="us")
        organization.update(name="New")
    assert calls.replicated == [(organization, {"shard_identifier": organization.id})]
    assert calls.replicated[0][0].name == "New"
    assert calls.deleted == []


def test_a_deletion_in_a_cell_calls_the_class_and_leaves_a_tombstone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with outbox_runner():
        organization = factories.create_organization(cell="us")
    identifier = organization.id
    calls = Calls(monkeypatch, Organization)
    with outbox_runner(), assume_silo(SiloMode.CELL, cell="us"):
        organization.delete()
    assert calls.deleted == [
        {"identifier": identifier, "shard_identifier": identifier, "payload": None}
    ]
    (tombstone,) = ControlTombstone._base_manager.using("control")
    assert (tombstone.table_name, tombstone.object_identifier) == (
        "acme_organization",
        identifier,
    )


def test_a_change_in_control_names_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    with outbox_runner():
        organization = factories.create_organization(cell="eu")
    calls = Calls(monkeypatch, AuthProvider)
    with outbox_runner():
        provider = factories.create_auth_provider(organization)
    given = {"cell_name": "eu", "shard_identifier": organization.id}
    assert calls.replicated == [(provider, given)]


def test_a_deletion_in_control_goes_to_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    with outbox_runner():
        organization = factories.create_organization(cell="eu")
    with outbox_runner():
        provider = factories.create_auth_provider(organization)
    identifier = provider.id
    calls = Calls(monkeypatch, AuthProvider)
    with outbox_runner(), assume_silo(SiloMode.CONTROL):
        provider.delete()
    told = sorted(calls.deleted, key=lambda given: str(given["cell_name"]))
    assert [(each["cell_name"], each["identifier"]) for each in told] == [
        ("eu", identifier),
        ("us", identifier),
    ]
    for alias in ("cell_us", "cell_eu"):
        assert CellTombstone._base_manager.using(alias).count() == 1


def test_a_payload_comes_through_to_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, Organization)
    with assume_silo(SiloMode.CELL, cell="us"):
        ModelReceiver(Organization)(
            object_identifier=987_654, shard_identifier=5, payload={"slug": "gone"}, message_id=1
        )
    assert calls.deleted == [
        {"identifier": 987_654, "shard_identifier": 5, "payload": {"slug": "gone"}}
    ]


def test_an_error_of_a_handler_is_a_failure_of_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: OrganizationMember, shard_identifier: int) -> None:
        raise RuntimeError("control is full")

    monkeypatch.setattr(OrganizationMember, "handle_async_replication", fail)
    user = factories.create_user()
    factories.create_member(factories.create_organization(cell="us"), user)
    with pytest.raises(OutboxFlushError, match="control is full"):
        drain_outboxes()
    with assume_silo(SiloMode.CONTROL):
        assert OrganizationMapping.objects.exists()
        assert User.objects.filter(id=user.id).exists()
