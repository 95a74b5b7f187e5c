"""Managers of producing models: without them `objects` would change rows and write no message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from hybridcloud.outbox.write.querysets import ProducingQuerySet

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProducingManager[M: models.Model](models.Manager[M]):
    """What both public managers share.

    A manager of your own derives from one of them; a queryset of your own from
    `ProducingQuerySet`, with ``from_queryset``.
    """

    _queryset_class = ProducingQuerySet

    def bulk_delete(self, objs: Iterable[M]) -> tuple[int, dict[str, int]]:
        """Delete the rows of these instances, with what hangs on them, and write the messages."""
        return self.get_queryset().bulk_delete(objs)  # type: ignore[attr-defined, no-any-return]


class CellOutboxProducingManager[M: models.Model](ProducingManager[M]):
    """The manager of a producing model of cells; use it as ``objects``."""


class ControlOutboxProducingManager[M: models.Model](ProducingManager[M]):
    """The manager of a producing model of control; use it as ``objects``."""


def is_producing(manager: models.Manager[Any]) -> bool:
    """Say whether bulk operations through a manager write messages; for checks."""
    return isinstance(manager.get_queryset(), ProducingQuerySet)
