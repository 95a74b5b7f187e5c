"""The benchmarks' settings: two silos, and no flush unless asked for."""

from __future__ import annotations

import os

from fixtures.settings import base
from fixtures.settings.base import (
    CELERY_BROKER_TRANSPORT_OPTIONS,
    CELERY_BROKER_URL,
    CELERY_TASK_IGNORE_RESULT,
    DATABASE_ROUTERS,
    DEFAULT_AUTO_FIELD,
    LOGGING,
    REDIS_URL,
    SECRET_KEY,
    USE_TZ,
)

__all__ = [
    "CELERY_BROKER_TRANSPORT_OPTIONS",
    "CELERY_BROKER_URL",
    "CELERY_TASK_IGNORE_RESULT",
    "DATABASE_ROUTERS",
    "DEFAULT_AUTO_FIELD",
    "LOGGING",
    "REDIS_URL",
    "SECRET_KEY",
    "USE_TZ",
]

DATABASES = base.databases("control", "cell_us")
INSTALLED_APPS = ["silos", "hybridcloud", "receivers", "tests.benchmarks.subjects"]
ROOT_URLCONF = "hybridcloud.rpc.urls"
HYBRIDCLOUD = {
    "SILO_MODE": os.environ.get("BENCH_SILO_MODE", "MONOLITH"),
    "CELLS": [{"name": "us", "address": "http://127.0.0.1:8001"}],
    "CONTROL_ADDRESS": os.environ.get("BENCH_CONTROL_ADDRESS", "http://127.0.0.1:8000"),
    "RPC_SECRETS": ["an example: benchmarks sign too"],
    "DATABASES": {"control": "control", "cells": {"us": "cell_us"}},
    "REDIS_URL": REDIS_URL,
    "FLUSH": os.environ.get("BENCH_FLUSH", "cron"),
}
