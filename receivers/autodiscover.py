"""Imports the `outbox_receivers` module of each installed app."""

from __future__ import annotations

from django.utils.module_loading import autodiscover_modules

MODULE = "outbox_receivers"


def import_receivers() -> None:
    """Import `<app>.outbox_receivers` of every installed app that has one.

    Exceptions from the modules propagate.
    """
    autodiscover_modules(MODULE)
