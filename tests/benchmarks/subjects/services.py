"""The RPC service of the benchmark, which does no work of its own."""

from __future__ import annotations

from abc import abstractmethod

from hybridcloud.rpc import RpcModel, RpcService, rpc_method
from silos import SiloMode


class RpcDocument(RpcModel):
    id: int
    organization_id: int = 0
    name: str = ""
    body: str = ""


class BenchService(RpcService):
    key = "bench"
    local_silo = SiloMode.CONTROL

    @rpc_method
    @abstractmethod
    def put(self, *, document: RpcDocument) -> int:
        """Take a document and return its id."""

    @classmethod
    def get_local_implementation(cls) -> RpcService:
        """Return the service that runs in control."""
        return LocalBenchService()


class LocalBenchService(BenchService):
    def put(self, *, document: RpcDocument) -> int:
        """Do no work, because the call itself is measured."""
        return document.id


bench_service = BenchService.create_delegation()
