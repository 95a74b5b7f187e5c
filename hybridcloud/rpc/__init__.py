"""Typed, signed remote procedure calls between silos."""

from __future__ import annotations

from .batches import Batch, BatchItem, batch
from .errors import (
    RpcAuthenticationError,
    RpcBodyError,
    RpcError,
    RpcNotFoundError,
    RpcRemoteError,
    RpcSetupError,
    RpcTooLargeError,
    RpcUnavailableError,
    RpcValidationError,
)
from .harden import RpcModel
from .method import cell_rpc_method, rpc_method
from .resolve import ByCellName, ByOrganizationId, ByOrganizationIdAttribute, CellResolution
from .service import RpcService

__all__ = [
    "Batch",
    "BatchItem",
    "ByCellName",
    "ByOrganizationId",
    "ByOrganizationIdAttribute",
    "CellResolution",
    "RpcAuthenticationError",
    "RpcBodyError",
    "RpcError",
    "RpcModel",
    "RpcNotFoundError",
    "RpcRemoteError",
    "RpcService",
    "RpcSetupError",
    "RpcTooLargeError",
    "RpcUnavailableError",
    "RpcValidationError",
    "batch",
    "cell_rpc_method",
    "rpc_method",
]
