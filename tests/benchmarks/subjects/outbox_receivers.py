"""Imported by itself at start; so the RPC service is known to whoever serves it."""

from __future__ import annotations

from tests.benchmarks.subjects.services import bench_service

__all__ = ["bench_service"]
