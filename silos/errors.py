"""Every error of `silos`; without this file a wrong silo would surface as a database error.

SiloError
├── AvailabilityError            a model, function or instance was touched from the wrong silo
├── SiloTransactionError         a write to one silo inside a transaction of another only
├── CellLookupError              (LookupError)
│   ├── UnknownCellError         no cell of that name in the directory
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
    """Base of every error of `silos`; do not raise it directly."""


class AvailabilityError(SiloError):
    """Something was touched from a silo in which it does not live.

    Attributes:
        touched: What was touched, e.g. `acme.Organization`.
        current: The silo, and cell, from which it was touched.
        lives_in: Where it lives.
    """

    # The message stays the only positional argument, so that the error survives pickling.
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
        written: The alias that was written to.
        open_on: The aliases with an open transaction.
    """

    def __init__(self, message: str, *, written: str = "", open_on: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.written = written
        self.open_on = open_on


class CellLookupError(SiloError, LookupError):
    """A cell could not be found."""


class UnknownCellError(CellLookupError):
    """No cell of that name is in `HYBRIDCLOUD["CELLS"]`."""


class CellMappingNotFoundError(CellLookupError):
    """The cell resolver knows no cell for an organization."""


class SiloConfigurationError(SiloError, ImproperlyConfigured):
    """What `HYBRIDCLOUD` says of silos cannot be used."""


class DuplicateCellError(SiloConfigurationError):
    """Two cells share a name or an address."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names what `name` may have meant, and what there is."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(repr(match) for match in close)}? " if close else ""
    return f"{meant}Known: {', '.join(repr(choice) for choice in choices)}."
