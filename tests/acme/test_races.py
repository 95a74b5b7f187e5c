"""Changes that cross one another still meet; without it a user could stay stale in a cell for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from fixtures.acme import factories
from fixtures.acme.models import (
    AuthProvider,
    OrganizationMapping,
    OrganizationMemberMapping,
    User,
    UserReplica,
)
from fixtures.acme.services import RpcMember, directory_service
from hybridcloud.testutils import assume_test_silo_mode, assume_test_silo_mode_of, outbox_runner
from silos import SiloMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], object]], Future[object]]]:
    """Return a function that runs another one in control, on a connection of its own."""
    with ThreadPoolExecutor(1) as pool:

        def start(function: Callable[[], object]) -> Future[object]:
            def run() -> object:
                try:
                    with assume_test_silo_mode(SiloMode.CONTROL):
                        return function()
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield start


def wait_until_blocked_or_done(future: Future[object]) -> None:
    """Wait until the other connection waits for a lock of this one, or needs none."""
    tick = threading.Event()
    for _ in range(500):
        with connections["control"].cursor() as cursor:
            cursor.execute(
                # Not pg_stat_activity: inside a transaction it stands still.
                "SELECT count(*) FROM pg_locks"
                " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            blocked = cursor.fetchone()[0]
        if blocked or future.done():
            return
        tick.wait(0.02)
    pytest.fail("The other connection neither waits nor ends.")


def test_a_change_that_crosses_a_new_membership_reaches_the_cell(
    elsewhere: Callable[[Callable[[], object]], Future[object]],
) -> None:
    with outbox_runner():
        user = factories.create_user("ada", first_name="Old")
        organization = factories.create_organization(cell="us")
    member = RpcMember(id=1, organization_id=organization.id, user_id=user.id, cell_name="us")

    with assume_test_silo_mode_of(User):
        with transaction.atomic(using="control"):
            # No membership yet, so the change itself goes nowhere.
            changed = User.objects.get(id=user.id)
            changed.first_name = "New"
            changed.save(update_fields=["first_name"])
            joining = elsewhere(lambda: directory_service.upsert_member(member=member))
            wait_until_blocked_or_done(joining)
        wait([joining], timeout=30)
        assert joining.result() == "done"
    with outbox_runner():
        pass

    with assume_test_silo_mode_of(UserReplica, cell="us"):
        assert UserReplica.objects.get(user_id=user.id).first_name == "New"


def test_a_user_deleted_while_joining_leaves_no_membership(
    elsewhere: Callable[[Callable[[], object]], Future[object]],
) -> None:
    with outbox_runner():
        user = factories.create_user()
        organization = factories.create_organization(cell="us")
    member = RpcMember(id=1, organization_id=organization.id, user_id=user.id, cell_name="us")

    with assume_test_silo_mode_of(User):
        with transaction.atomic(using="control"):
            User.objects.get(id=user.id).delete()
            joining = elsewhere(lambda: directory_service.upsert_member(member=member))
            wait_until_blocked_or_done(joining)
        assert joining.result(timeout=30) == "user_gone"
        assert OrganizationMemberMapping.objects.count() == 0


def test_a_provider_set_up_while_its_organization_goes_is_removed_with_it(
    elsewhere: Callable[[Callable[[], object]], Future[object]],
) -> None:
    with outbox_runner():
        organization = factories.create_organization(cell="us")

    with assume_test_silo_mode_of(AuthProvider):
        with transaction.atomic(using="control"):
            OrganizationMapping.objects.select_for_update(no_key=True).get(
                organization_id=organization.id
            )
            AuthProvider.objects.create(organization_id=organization.id, provider="saml")
            removing = elsewhere(
                lambda: directory_service.remove_organization(organization_id=organization.id)
            )
            wait_until_blocked_or_done(removing)
        removing.result(timeout=30)
        assert AuthProvider.objects.count() == 0
