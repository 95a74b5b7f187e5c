"""The benchmarks' settings: all silos, nothing flushed unless a benchmark says so."""

from __future__ import annotations

import os

from fixtures.settings import base
from fixtures.settings.monolith import *  # noqa: F403
from fixtures.settings.monolith import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks.subjects"]
HYBRIDCLOUD = base.hybridcloud("MONOLITH", FLUSH=os.environ.get("BENCH_FLUSH", "cron"))
