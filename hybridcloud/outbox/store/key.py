"""The key of a shard."""

from __future__ import annotations

from typing import Any, NamedTuple


class ShardKey(NamedTuple):
    """What makes a shard: whose queue it is, and in control for which cell.

    Attributes:
        scope: the scope's number.
        identifier: the shard identifier.
        cell: the target cell; None in a cell's own table.
    """

    scope: int
    identifier: int
    cell: str | None = None

    @classmethod
    def of_columns(cls, values: Any) -> ShardKey:
        """Return the key for values of the sharding columns, in their order."""
        # The cell, where there is one, is the first column.
        *cell, scope, identifier = values
        return cls(scope, identifier, *cell)

    def columns(self) -> tuple[Any, ...]:
        """Return the values of the sharding columns, in their order."""
        own = (self.scope, self.identifier)
        return own if self.cell is None else (self.cell, *own)

    def __str__(self) -> str:
        return ":".join(map(str, self.columns()))
