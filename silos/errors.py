"""The exceptions of `silos`.

SiloError
├── AvailabilityError            a model, function or instance was accessed from the wrong silo
├── SiloTransactionError         a write to one silo with a transaction open only on another
├── CellLookupError              (LookupError)
│   ├── UnknownCellError         the directory has no cell with this name
│   └── CellMappingNotFoundError no cell is known for an organization
└── SiloConfigurationError       (ImproperlyConfigured)
    └── DuplicateCellError       two cells share a name or an address
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from collections.abc import Iterable


class SiloError(Exception):
    """Base of every exception of `silos`; not raised directly."""


class AvailabilityError(SiloError):
    """Something was accessed from a silo in which it does not live.

    Attributes:
        touched: What was accessed, e.g. `acme.Organization`.
        current: The silo, and cell, from which it was accessed.
        lives_in: Where it lives.
    """

    # The message is the only positional argument, so that the error can be unpickled.
    def __init__(
        self, message: str, *, touched: str = "", current: str = "", lives_in: str = ""
    ) -> None:
        super().__init__(message)
        self.touched = touched
        self.current = current
        self.lives_in = lives_in


class SiloTransactionError(SiloError):
    """A write went to one silo while a transaction was open only on another.

    Attributes:
        written: The alias of the refused write.
        open_on: The aliases with an open transaction.
    """

    def __init__(self, message: str, *, written: str = "", open_on: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.written = written
        self.open_on = open_on


class CellLookupError(SiloError, LookupError):
    """Base of the errors of a cell lookup; not raised directly."""


class UnknownCellError(CellLookupError):
    """`HYBRIDCLOUD["CELLS"]` has no cell with this name."""


class CellMappingNotFoundError(CellLookupError):
    """The cell resolver knows no cell for an organization."""


class SiloConfigurationError(SiloError, ImproperlyConfigured):
    """The silos' part of `HYBRIDCLOUD`, or a limit of a model, is invalid."""


class DuplicateCellError(SiloConfigurationError):
    """Two cells share a name or an address."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the names close to `name` and all known ones."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(repr(match) for match in close)}? " if close else ""
    return f"{meant}Known: {', '.join(repr(choice) for choice in choices)}."
