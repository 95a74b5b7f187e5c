"""The RPC services that carry tombstones to the other silo."""

from __future__ import annotations

from abc import abstractmethod

from hybridcloud.rpc import ByCellName, RpcModel, RpcService, cell_rpc_method, rpc_method
from silos import SiloMode


class RpcTombstone(RpcModel):
    """A row that was deleted in its silo.

    Attributes:
        table_name: the table that it was in.
        identifier: its id.
    """

    table_name: str
    identifier: int


class CellTombstoneService(RpcService):
    """Records in a cell what was deleted in control."""

    key = "cell_tombstone"
    local_silo = SiloMode.CELL

    @cell_rpc_method(resolve=ByCellName())
    @abstractmethod
    def record_remote_tombstone(self, *, cell_name: str, tombstone: RpcTombstone) -> None:
        """Record that a row of control was deleted; safe to call again."""

    @classmethod
    def get_local_implementation(cls) -> CellTombstoneService:
        """Return the service that writes to the cell's database."""
        from hybridcloud.tombstones.local import DatabaseCellTombstoneService  # noqa: PLC0415 - Django app registry

        return DatabaseCellTombstoneService()


class ControlTombstoneService(RpcService):
    """Records in control what was deleted in a cell."""

    key = "control_tombstone"
    local_silo = SiloMode.CONTROL

    @rpc_method
    @abstractmethod
    def record_remote_tombstone(self, *, tombstone: RpcTombstone) -> None:
        """Record that a row of a cell was deleted; safe to call again."""

    @classmethod
    def get_local_implementation(cls) -> ControlTombstoneService:
        """Return the service that writes to control's database."""
        from hybridcloud.tombstones.local import DatabaseControlTombstoneService  # noqa: PLC0415 - Django app registry

        return DatabaseControlTombstoneService()


cell_tombstone_service = CellTombstoneService.create_delegation()
control_tombstone_service = ControlTombstoneService.create_delegation()
