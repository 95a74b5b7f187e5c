"""`outbox_runner` delivers everything, or says why it cannot; without it tests would pass on luck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from fixtures.acme import audit, factories
from fixtures.acme.categories import Category, Scope
from fixtures.acme.models import (
    Organization,
    OrganizationMapping,
    ProjectMapping,
    TeamMapping,
    UserReplica,
)
from fixtures.acme.services import directory_service
from hybridcloud.outbox import OutboxFlushError, RetryLater, process_cell_outbox
from hybridcloud.testutils import (
    OutboxRecursionLimitError,
    assert_outbox,
    assume_test_silo_mode,
    assume_test_silo_mode_of,
    outbox_context,
    outbox_runner,
    override_options,
    pending_messages,
    refute_outbox,
)
from hybridcloud.testutils.rpc import RpcInTransactionError
from silos import SiloMode, get_current_silo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridcloud.testutils.outbox import OutboxProbe, OutboxRunner

pytestmark = pytest.mark.django_db


@pytest.fixture
def receive() -> Iterator[Callable[..., None]]:
    """Return a function that connects a receiver of cell messages for this test."""
    connected: list[tuple[Any, Any]] = []

    def connect(category: Category, function: Callable[..., None]) -> None:
        process_cell_outbox.connect(function, sender=category, weak=False)
        connected.append((category, function))

    yield connect
    for category, function in connected:
        process_cell_outbox.disconnect(function, sender=category)


def mapped() -> set[int]:
    """Return the organizations that control knows."""
    with assume_test_silo_mode_of(OrganizationMapping):
        return set(OrganizationMapping.objects.values_list("organization_id", flat=True))


def test_messages_of_control_and_of_every_cell_are_delivered() -> None:
    with outbox_runner():
        user = factories.create_user()
        for cell in ("us", "eu"):
            factories.create_member(factories.create_organization(cell=cell), user)
    for cell in ("us", "eu"):
        with assume_test_silo_mode_of(UserReplica, cell=cell):
            assert UserReplica.objects.filter(user_id=user.id).exists()
    refute_outbox()


def test_a_handler_runs_in_the_silo_of_its_message(receive: Callable[..., None]) -> None:
    seen: list[str] = []
    receive(Category.ORGANIZATION_UPDATE, lambda **_: seen.append(str(get_current_silo())))
    with outbox_runner():
        factories.create_organization(cell="us")
        factories.create_organization(cell="eu")
    assert sorted(seen) == ["cell 'eu'", "cell 'us'"]
    assert get_current_silo().mode is SiloMode.MONOLITH


def test_a_block_that_fails_delivers_nothing() -> None:
    @outbox_runner
    def fail() -> None:
        factories.create_organization()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_outbox(count=1)
    assert mapped() == set()


@pytest.mark.parametrize("parentheses", [False, True])
def test_it_decorates_functions(*, parentheses: bool) -> None:
    decorate = outbox_runner() if parentheses else outbox_runner

    @decorate
    def make(name: str) -> Organization:
        return factories.create_organization(name)

    assert {make("One").id, make("Two").id} == mapped()
    assert make.__name__ == "make"


def test_it_refuses_coroutine_functions() -> None:
    async def make() -> None: ...

    with pytest.raises(TypeError, match=r"^Coroutine function .*make"):
        outbox_runner()(make)


def test_the_first_failure_is_raised_with_its_cause(receive: Callable[..., None]) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError("no luck")

    receive(Category.ORGANIZATION_UPDATE, fail)
    with pytest.raises(OutboxFlushError, match="no luck") as caught, outbox_runner():
        organization = factories.create_organization()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.outbox.object_identifier == organization.id
    assert_outbox(category=Category.ORGANIZATION_UPDATE)


def test_what_failed_is_tried_again_whatever_its_backoff(receive: Callable[..., None]) -> None:
    failures = [ZeroDivisionError(), None]

    def fail_once(**_: Any) -> None:
        if error := failures.pop(0):
            raise error

    receive(Category.ORGANIZATION_UPDATE, fail_once)
    with pytest.raises(OutboxFlushError), outbox_runner():
        organization = factories.create_organization()
    with outbox_runner():
        pass
    assert mapped() == {organization.id}
    refute_outbox()


def test_a_database_error_of_a_handler_leaves_the_test_usable(receive: Callable[..., None]) -> None:
    receive(
        Category.ORGANIZATION_UPDATE,
        lambda **_: Organization.objects.bulk_create([Organization(id=1, slug="a" * 1000)]),
    )
    with pytest.raises(OutboxFlushError), outbox_runner():
        factories.create_organization()
    assert_outbox()


def test_messages_that_keep_coming_are_named(receive: Callable[..., None]) -> None:
    def write_again(*, object_identifier: int, **_: Any) -> None:
        Organization.objects.get(id=object_identifier).save()

    receive(Category.ORGANIZATION_UPDATE, write_again)
    with (
        pytest.raises(
            OutboxRecursionLimitError,
            match=r"^Messages keep coming: .*ORGANIZATION_UPDATE \(1 waiting\), after 10 rounds",
        ) as caught,
        outbox_runner(),
    ):
        factories.create_organization()
    assert [name.rpartition(".")[2] for name in caught.value.chain] == ["ORGANIZATION_UPDATE"]


def test_ten_rounds_are_enough_for_ten_generations(receive: Callable[..., None]) -> None:
    left = list(range(9))

    def write_again(*, object_identifier: int, **_: Any) -> None:
        if left:
            left.pop()
            Organization.objects.get(id=object_identifier).save()

    receive(Category.ORGANIZATION_UPDATE, write_again)
    with outbox_runner():
        factories.create_organization()
    refute_outbox()


def test_switched_off_messages_stay_and_end_no_test() -> None:
    organization = factories.create_organization()
    switch = {"scope": Scope.ORGANIZATION_SCOPE.value, "identifier": organization.id}
    with override_options({"hybridcloud.disabled_shards": [switch]}):
        with outbox_runner():
            other = factories.create_organization()
        assert mapped() == {other.id}
        assert_outbox(count=1, shard=organization.id)
    with outbox_runner():
        pass
    assert mapped() == {organization.id, other.id}


def test_delayed_messages_wait_unless_they_are_included(receive: Callable[..., None]) -> None:
    calls: list[int] = []

    def not_yet(*, object_identifier: int, **_: Any) -> None:
        calls.append(object_identifier)
        if len(calls) == 1:
            raise RetryLater(3600)

    receive(Category.ORGANIZATION_UPDATE, not_yet)
    with outbox_runner():
        factories.create_organization()
    with outbox_runner():
        pass
    assert len(calls) == 1
    (parked,) = pending_messages(parked=True)
    assert parked.reason == "delayed"
    with outbox_runner(include_delayed=True):
        pass
    assert len(calls) == 2
    assert pending_messages(parked=True) == []


def test_runners_nest() -> None:
    with outbox_runner():
        with outbox_runner():
            inner = factories.create_organization()
        assert mapped() == {inner.id}
        outer = factories.create_organization()
    assert mapped() == {inner.id, outer.id}


@pytest.mark.django_db(transaction=True)
def test_nothing_is_flushed_inside_the_block() -> None:
    with outbox_runner():
        organization = factories.create_organization()
        assert mapped() == set()
        assert_outbox(count=1)
    assert mapped() == {organization.id}


@pytest.mark.django_db(transaction=True)
def test_outside_the_block_a_commit_is_flushed() -> None:
    organization = factories.create_organization()
    assert mapped() == {organization.id}


@pytest.mark.django_db(transaction=True)
def test_everything_works_on_committed_data_too() -> None:
    with outbox_runner():
        organization = factories.create_organization(cell="eu")
        team = factories.create_team(organization)
        factories.create_project(organization, team=team)
    with outbox_runner(), assume_test_silo_mode(SiloMode.CELL, cell="eu"):
        Organization.objects.get(id=organization.id).delete()
    for model in (OrganizationMapping, TeamMapping, ProjectMapping):
        with assume_test_silo_mode_of(model):
            assert model.objects.count() == 0


def test_a_context_without_flush_only_writes() -> None:
    organization = factories.create_organization()
    with outbox_context(transaction.atomic(using="cell_us"), flush=False):
        organization.save()
        organization.save()
    messages = assert_outbox(category=Category.ORGANIZATION_UPDATE, shard=organization.id)
    # The first save wrote one; of the two in the block only the last is left.
    assert len(messages) == 2


def test_filters_find_what_they_name() -> None:
    us = factories.create_organization(cell="us")
    eu = factories.create_organization(cell="eu")
    audit_cell = assume_test_silo_mode(SiloMode.CELL, cell="eu")
    with audit_cell:
        audit.record_event(eu.id, "login", target="door")
    assert_outbox(count=1, cell="us")
    assert_outbox(count=2, cell="eu")
    assert_outbox(count=1, shard=us.id)
    assert_outbox(count=1, payload={"action": "login", "target": "door"})
    assert_outbox(count=0, payload={"action": "logout"})
    refute_outbox(category=Category.TEAM_UPDATE)


def test_a_wrong_expectation_shows_what_is_there() -> None:
    organization = factories.create_organization()
    with pytest.raises(
        AssertionError, match=r"^Found 0 instead of a message \(shard=0\)"
    ) as missing:
        assert_outbox(shard=0)
    assert f"ORGANIZATION_UPDATE object {organization.id}" in str(missing.value)
    with pytest.raises(AssertionError, match=r"^Found 1 instead of 2 messages \(any\)"):
        assert_outbox(count=2)
    with pytest.raises(AssertionError, match=r"^Found 1 instead of no message \(any\)"):
        refute_outbox()


def test_the_fixtures_do_what_the_functions_do(
    outbox: OutboxProbe, outbox_runner: Callable[..., OutboxRunner]
) -> None:
    with outbox_runner():
        pass
    organization = factories.create_organization()
    assert outbox.assert_saved(count=1)[0].shard_identifier == organization.id
    assert len(outbox.pending(shard=organization.id)) == 1
    outbox.refute_saved(category=Category.TEAM_UPDATE)
    outbox.drain()
    outbox.refute_saved()
    assert mapped() == {organization.id}


def test_a_call_to_another_silo_inside_a_transaction_is_refused() -> None:
    with (
        pytest.raises(RpcInTransactionError, match=r"^Open transaction on cell_us"),
        assume_test_silo_mode(SiloMode.CELL, cell="us"),
        transaction.atomic(using="cell_us"),
    ):
        directory_service.next_organization_id(cell_name="us")


@pytest.mark.rpc_socket
@pytest.mark.django_db(transaction=True)
def test_everything_works_over_a_real_socket() -> None:
    with outbox_runner():
        user = factories.create_user()
        factories.create_member(factories.create_organization(cell="eu"), user)
    with assume_test_silo_mode_of(UserReplica, cell="eu"):
        assert UserReplica.objects.filter(user_id=user.id).exists()
    refute_outbox()
