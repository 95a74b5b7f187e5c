"""Checks that psycopg finds the libpq that it needs.

The library depends on ``psycopg`` without an implementation, as psycopg asks libraries to.
Where none is found, Django cannot load its database backend, and no model can be imported:
no check would ever run. So the app's configuration asks first, before any model is imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.checks import CheckMessage, Error

from hybridcloud.errors import ConfigurationError


def check_driver(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E047: psycopg finds a libpq, in a wheel or of the system."""
    found = _find()
    return [] if found is None else [found[0]]


def require_driver() -> None:
    """Raise what `check_driver` finds, before checks can run.

    Raises:
        ConfigurationError: psycopg does not load. Its cause is psycopg's own error, which lists
            what was tried.
    """
    found = _find()
    if found is not None:
        raise ConfigurationError(str(found[0])) from found[1]


def _find() -> tuple[CheckMessage, ImportError] | None:
    try:
        import psycopg  # noqa: F401, PLC0415 - its import is what is checked
    except ImportError as exc:
        return _describe(exc), exc
    return None


def _describe(cause: ImportError) -> Error:
    reason = str(cause).partition("\n")[0].rstrip(".")
    wanted = os.environ.get("PSYCOPG_IMPL")
    return Error(
        f"psycopg does not load in {sys.prefix}: {reason}.",
        hint='Install libpq with it: pip install "hybridcloud[binary]". Instead of this, '
        'pip install "psycopg[c]" or a libpq of the system will do.'
        + (f" PSYCOPG_IMPL={wanted} forbids all but one of them." if wanted else ""),
        obj="hybridcloud",
        id="hybridcloud.E047",
    )
