"""Tools for testing code that uses hybridcloud.

Names are loaded at first use, so that the pytest plugin of this package costs
nothing where Django is not set up yet.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridcloud.errors import OutboxRecursionLimitError
    from hybridcloud.outbox import outbox_context
    from hybridcloud.testutils.cascades import run_cascades
    from hybridcloud.testutils.options import override_options
    from hybridcloud.testutils.outbox import (
        assert_outbox,
        drain_outboxes,
        outbox_runner,
        pending_messages,
        refute_outbox,
    )
    from hybridcloud.testutils.silo import (
        all_silo_test,
        assume_test_silo_mode,
        assume_test_silo_mode_of,
        cell_silo_test,
        control_silo_test,
        override_cells,
    )

_HOMES = {
    "hybridcloud.errors": ("OutboxRecursionLimitError",),
    "hybridcloud.outbox": ("outbox_context",),
    "hybridcloud.testutils.cascades": ("run_cascades",),
    "hybridcloud.testutils.options": ("override_options",),
    "hybridcloud.testutils.outbox": (
        "assert_outbox",
        "drain_outboxes",
        "outbox_runner",
        "pending_messages",
        "refute_outbox",
    ),
    "hybridcloud.testutils.silo": (
        "all_silo_test",
        "assume_test_silo_mode",
        "assume_test_silo_mode_of",
        "cell_silo_test",
        "control_silo_test",
        "override_cells",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "OutboxRecursionLimitError",
    "all_silo_test",
    "assert_outbox",
    "assume_test_silo_mode",
    "assume_test_silo_mode_of",
    "cell_silo_test",
    "control_silo_test",
    "drain_outboxes",
    "outbox_context",
    "outbox_runner",
    "override_cells",
    "override_options",
    "pending_messages",
    "refute_outbox",
    "run_cascades",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
