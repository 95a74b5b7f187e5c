"""The suite's settings with the lease and timeout that are shipped: what is promised is tested once as it is."""

from __future__ import annotations

from fixtures.settings.test import *  # noqa: F403
from fixtures.settings.test import HYBRIDCLOUD as _SHORT

HYBRIDCLOUD = {
    key: value for key, value in _SHORT.items() if key not in {"LEASE", "HANDLER_TIMEOUT"}
}
