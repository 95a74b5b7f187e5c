"""The RPC service of the benchmark: an upsert, the work that replication does on the far side."""

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
        """Return the one that runs in control."""
        return LocalBenchService()


class LocalBenchService(BenchService):
    def put(self, *, document: RpcDocument) -> int:
        """Do no work: the call itself is what is measured."""
        return document.id


bench_service = BenchService.create_delegation()
