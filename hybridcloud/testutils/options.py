"""Pins runtime options for a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.test import override_settings

from hybridcloud import options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def override_options(values: Mapping[str, Any]) -> Iterator[None]:
    """Pin runtime options in every silo, for a block or a decorated function.

        with override_options({"hybridcloud.disabled_shards": [{"scope": 0, "identifier": 42}]}):
            ...

    Args:
        values: values by option; those of an enclosing block stay in force.

    Raises:
        UnknownOptionError: an option is not registered.
    """
    current = getattr(settings, "HYBRIDCLOUD", {})
    pinned = {**current.get("OPTIONS", {}), **values}
    with override_settings(HYBRIDCLOUD={**current, "OPTIONS": pinned}):
        for key in values:
            options.get(key)
        yield
