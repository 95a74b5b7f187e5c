"""Runtime options: without them a handler that does harm could be stopped by a deploy only.

A setting needs a deploy, an option does not: its value is in the silo's own
database, and running workers follow it within seconds.
"""

from __future__ import annotations

from hybridcloud.options.definition import register
from hybridcloud.options.definition import register_pattern as register_pattern
from hybridcloud.options.values import all, delete, get, set  # noqa: A004 - the reference's names

__all__ = ["all", "delete", "get", "register", "set"]
