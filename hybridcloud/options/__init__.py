"""Runtime options, which running processes follow within seconds.

Changing a setting needs a deploy; changing an option does not. Its value is in
the silo's own database.
"""

from __future__ import annotations

from hybridcloud.options.definition import register
from hybridcloud.options.definition import register_pattern as register_pattern
from hybridcloud.options.values import all, delete, get, set  # noqa: A004 - the reference's names

__all__ = ["all", "delete", "get", "register", "set"]
