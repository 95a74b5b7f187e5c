"""Imported at start, so that the RPC service is registered in the server."""

from __future__ import annotations

from tests.benchmarks.subjects.services import bench_service

__all__ = ["bench_service"]
