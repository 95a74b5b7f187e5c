"""A hook for deletions that take long; in a module of its own, since the settings name it by its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db import models


def slowly(model: type[models.Model], ids: list[int]) -> bool:
    """Delete one row at each call."""
    model._base_manager.filter(pk=ids[0]).delete()
    return len(ids) == 1
