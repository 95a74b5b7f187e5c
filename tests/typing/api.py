"""The public API as a type checker sees it: checked by mypy, never run; without it a name could lose its types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ClassVar, Self, assert_type

from django.db import models, transaction
from django.dispatch import receiver
from django.test import TestCase

from fixtures.acme.categories import Category, Scope
from fixtures.acme.models import Organization, User
from fixtures.acme.services import RpcOrganization, organization_service
from hybridcloud import options
from hybridcloud.outbox import (
    CellOutbox,
    CellOutboxBase,
    CellOutboxProducingManager,
    CellOutboxProducingModel,
    ControlOutbox,
    ControlOutboxBase,
    ControlOutboxProducingManager,
    ControlOutboxProducingModel,
    Delivery,
    InvalidOutboxError,
    OnFailure,
    OutboxBase,
    OutboxCategory,
    OutboxDatabaseError,
    OutboxFlushError,
    OutboxScope,
    ReplicatedCellModel,
    ReplicatedControlModel,
    RetryLater,
    outbox_context,
    process_cell_outbox,
    process_control_outbox,
    scope_categories,
)
from hybridcloud.rpc import (
    ByCellName,
    ByOrganizationId,
    RpcError,
    RpcService,
    RpcUnavailableError,
    cell_rpc_method,
    rpc_method,
)
from hybridcloud.testutils import (
    OutboxRecursionLimitError,
    all_silo_test,
    assert_outbox,
    assume_test_silo_mode,
    assume_test_silo_mode_of,
    cell_silo_test,
    control_silo_test,
    outbox_runner,
    override_cells,
    override_options,
)
from receivers.outbox import maybe_process_tombstone
from silos import (
    AvailabilityError,
    Cell,
    SiloMode,
    assume_silo,
    cell_silo_function,
    cell_silo_model,
    control_silo_function,
    control_silo_model,
    find_cells_for_orgs,
    find_cells_for_user,
    get_current_silo,
)

# Silos


def silos() -> None:
    """Switch silos and look cells up."""
    with assume_silo(SiloMode.CELL, cell="us") as entered:
        assert_type(entered.cell, str | None)
    assert_type(get_current_silo().cell, str | None)
    assert_type(find_cells_for_orgs([1, 2]), set[str])
    assert_type(find_cells_for_user(1), set[str])
    assert_type(Cell("us").address, str)


@cell_silo_function
def in_cell(number: int) -> str:
    """Run in cells only."""
    return str(number)


@control_silo_function
def in_control() -> None:
    """Run in control only."""


def limited_functions() -> None:
    """Call functions with a limit: they keep their types."""
    assert_type(in_cell(1), str)
    assert_type(in_control, Callable[[], None])


# Categories and scopes


class ShopCategory(OutboxCategory):
    """What changes in a shop."""

    ORDER_UPDATE = 100
    ORDER_EVENT = 101
    BASKET_UPDATE = 102


class ShopScope(OutboxScope, categories=ShopCategory):
    """Whose queue."""

    ORDER_SCOPE = scope_categories(
        100, {ShopCategory.ORDER_UPDATE}, shard_key="customer.region_id", owner="shop.Order"
    )
    EVENT_SCOPE = scope_categories(
        101,
        {ShopCategory.ORDER_EVENT},
        shard_key="order_id",
        coalesce=False,
        on_failure=OnFailure.BLOCK_OBJECT,
        max_attempts=5,
        ack=1,
        handler_timeout=30.0,
    )
    OLD_SCOPE = scope_categories(102, set(), retired={ShopCategory.BASKET_UPDATE})


def scopes() -> None:
    """Look scopes up: they are made from a declaration, and called with a number."""
    assert_type(ShopScope(100), ShopScope)
    assert_type(Scope(0), Scope)
    assert_type(Scope.ORGANIZATION_SCOPE.value, int)
    assert_type(Category.USER_UPDATE.get_scope(), OutboxScope)
    assert_type(ShopScope.EVENT_SCOPE.policy.delivery, Delivery)
    Scope.ORGANIZATION_SCOPE < 3  # noqa: B015  (it is an int)


# Models


@cell_silo_model
class Order(ReplicatedCellModel):
    """A replicated model of cells."""

    category = ShopCategory.ORDER_UPDATE
    organization_id = models.BigIntegerField()

    objects: ClassVar[CellOutboxProducingManager[Self]] = CellOutboxProducingManager()

    def payload_for_update(self) -> dict[str, Any] | None:
        """Return a payload."""
        return {"id": self.pk}

    def handle_async_replication(self, shard_identifier: int) -> None:
        """Replicate."""

    @classmethod
    def handle_async_deletion(
        cls, identifier: int, shard_identifier: int, payload: Mapping[str, Any] | None
    ) -> None:
        """Remove."""


@control_silo_model
class Customer(ReplicatedControlModel):
    """A replicated model of control."""

    category = ShopCategory.BASKET_UPDATE

    objects: ClassVar[ControlOutboxProducingManager[Self]] = ControlOutboxProducingManager()

    def outbox_cell_names(self) -> Collection[str]:
        """Return targets."""
        return {"us"}

    def handle_async_replication(self, cell_name: str, shard_identifier: int) -> None:
        """Replicate."""

    @classmethod
    def handle_async_deletion(
        cls,
        identifier: int,
        cell_name: str,
        shard_identifier: int,
        payload: Mapping[str, Any] | None,
    ) -> None:
        """Remove."""


class Basket(CellOutboxProducingModel):
    """A producing model of cells."""

    def outbox_for_update(self, shard_identifier: int | None = None) -> CellOutboxBase:
        """Make a message."""
        return ShopCategory.ORDER_UPDATE.as_cell_outbox(
            model=self, payload=None, shard_identifier=shard_identifier
        )


class Account(ControlOutboxProducingModel):
    """A producing model of control."""

    def outboxes_for_update(self, shard_identifier: int | None = None) -> list[ControlOutboxBase]:
        """Make messages."""
        return ShopCategory.ORDER_UPDATE.as_control_outboxes(
            {"us"}, shard_identifier=shard_identifier, object_identifier=1
        )


def producing() -> None:
    """Write through producing models and managers."""
    order = Order.objects.create(organization_id=1)
    assert_type(order, Order)
    assert_type(Order.objects.bulk_create([order]), list[Order])
    assert_type(Order.objects.filter(organization_id=1).update(organization_id=2), int)
    assert_type(User.objects.get(id=1), User)
    assert_type(User.objects.create_user("ada"), User)
    with outbox_context(transaction.atomic(using="cell_us"), flush=False):
        order.outbox_for_update().save()
    with outbox_context(flush=False):
        ...


def messages(message: CellOutbox, targeted: ControlOutbox, any_message: OutboxBase) -> None:
    """Read messages and drain them."""
    assert_type(message.shard_identifier, int)
    assert_type(targeted.cell_name, str)
    any_message.drain_shard(flush_all=True)
    assert_type(CellOutbox.get_total_outbox_count(), int)


@receiver(process_cell_outbox, sender=ShopCategory.ORDER_UPDATE)
def process_order(object_identifier: int, payload: Mapping[str, Any] | None, **_: Any) -> None:
    """Handle a message, or its deletion."""
    order = maybe_process_tombstone(Order, object_identifier)
    assert_type(order, Order | None)
    if order is None:
        raise RetryLater(timedelta(seconds=5), reason="not yet")


@receiver(process_control_outbox, sender=ShopCategory.BASKET_UPDATE)
def process_customer(object_identifier: int, cell_name: str, **_: Any) -> None:
    """Handle a message for a cell."""
    maybe_process_tombstone(Customer, object_identifier, cell_name=cell_name)


def errors() -> None:
    """Catch what the engine raises."""
    try:
        messages(CellOutbox(), ControlOutbox(), CellOutbox())
    except OutboxFlushError as error:
        assert_type(error.cause, BaseException | None)
    except (InvalidOutboxError, OutboxDatabaseError, AvailabilityError):
        raise


# RPC


class ShopService(RpcService):
    """A service of cells."""

    key = "shop"
    local_silo = SiloMode.CELL

    @classmethod
    def get_local_implementation(cls) -> ShopService:
        """Return the one that works."""
        raise NotImplementedError

    @cell_rpc_method(resolve=ByOrganizationId())
    @abstractmethod
    def count_orders(self, *, organization_id: int) -> int:
        """Count."""

    @cell_rpc_method(resolve=ByCellName())
    @abstractmethod
    def forget(self, *, cell_name: str) -> None:
        """Forget."""


class BillingService(RpcService):
    """A service of control."""

    key = "billing"
    local_silo = SiloMode.CONTROL

    @classmethod
    def get_local_implementation(cls) -> BillingService:
        """Return the one that works."""
        raise NotImplementedError

    @rpc_method
    @abstractmethod
    def bill(self, *, amounts: list[int]) -> dict[str, int]:
        """Bill."""


shop_service = ShopService.create_delegation()


def rpc() -> None:
    """Call services: a remote call has the types of a local one."""
    assert_type(shop_service, ShopService)
    assert_type(shop_service.count_orders(organization_id=1), int)
    assert_type(BillingService.create_delegation().bill(amounts=[1]), dict[str, int])
    assert_type(organization_service.get_organization(organization_id=1), RpcOrganization | None)
    try:
        shop_service.forget(cell_name="us")
    except RpcUnavailableError as error:
        assert_type(error.retryable, bool)
    except RpcError:
        raise


# Options


def runtime_options() -> None:
    """Set and read runtime options."""
    options.register("shop.limit", int, 5, doc="Orders at once.")
    options.set("shop.limit", 6, by="ada", reason="a busy day")
    assert_type(options.all(), dict[str, Any])
    options.delete("shop.limit", by="ada")


# Testing


def switching() -> None:
    """Switch in tests."""
    with assume_test_silo_mode(SiloMode.CONTROL):
        ...
    assert_type(assume_test_silo_mode_of(Organization), AbstractContextManager[Any])
    with override_options({"shop.limit": 7}), override_cells("us", Cell("de")) as cells:
        assert_type(cells, tuple[Cell, ...])
    try:
        with outbox_runner(include_delayed=True):
            ...
    except OutboxRecursionLimitError as error:
        assert_type(error.chain, tuple[str, ...])
    assert_outbox(count=1, category=Category.USER_UPDATE)


@outbox_runner
def decorated(number: int) -> str:
    """Keep its type without parentheses."""
    return str(number)


@outbox_runner()
def decorated_by_call(number: int) -> str:
    """Keep its type with parentheses."""
    return str(number)


@cell_silo_test
def test_in_cell(number: int) -> None:
    """Keep its type."""


@control_silo_test
class InControl(TestCase):
    """Stay a class."""


@all_silo_test(cell="eu")
class Everywhere(TestCase):
    """Stay a class."""


def decorators() -> None:
    """Use what was decorated."""
    assert_type(decorated(1), str)
    assert_type(decorated_by_call(1), str)
    test_in_cell(number=1)
    assert_type(InControl.setUpTestData(), None)
    assert_type(Everywhere.setUpTestData(), None)
