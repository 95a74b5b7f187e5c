"""A typed, sharded transactional outbox between Django silos."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__: str
"""The release that is installed, as its metadata says."""

# For type checkers this would be a module of which every name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Return the version, which is read when it is asked for."""
        if name == "__version__":
            # It takes longer to import than this package does.
            from importlib.metadata import version  # noqa: PLC0415

            return version("hybridcloud")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
