"""Imports each app's `outbox_receivers`: without it a receiver that nobody imports would hear nothing."""

from __future__ import annotations

from django.utils.module_loading import autodiscover_modules

MODULE = "outbox_receivers"


def import_receivers() -> None:
    """Import `<app>.outbox_receivers` of every installed app that has one; errors inside come through."""
    autodiscover_modules(MODULE)
