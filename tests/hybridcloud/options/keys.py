"""Options that the tests use; without it each file would register its own, and their names could clash."""

from __future__ import annotations

from hybridcloud import options

LIMIT = "tests.limit"
RATIO = "tests.ratio"
NAMES = "tests.names"
RULES = "tests.rules"
VERSION = "tests.{}.version"

options.register(LIMIT, int, 5, doc="How many at once.")
options.register(RATIO, float, 0.5)
options.register(NAMES, list, [])
options.register(RULES, dict, {"strict": True})
options.register_pattern("tests.*.version", int, 0)
