"""What caused what, across silos: without it a loop of messages and calls would go round for ever (rule 9).

A causation is carried by a context variable, travels in the ``headers`` of
messages and RPC calls, and grows by one link at each handler.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT_LINKS = 32


@dataclass(frozen=True, slots=True)
class Causation:
    """The chain of messages that led to what runs now.

    Attributes:
        correlation_id: the same for everything that one change caused.
        depth: handlers that were passed, in all silos.
        chain: names of the categories passed, newest last; the newest 32 are kept.
    """

    correlation_id: str
    depth: int
    chain: tuple[str, ...]

    def followed_by(self, link: str) -> Causation:
        """Return the causation inside the handler of ``link``."""
        return Causation(self.correlation_id, self.depth + 1, (*self.chain, link)[-_KEPT_LINKS:])

    def as_headers(self) -> dict[str, Any]:
        """Return what messages and calls carry, as JSON."""
        return {"correlation": self.correlation_id, "depth": self.depth, "chain": list(self.chain)}


def current() -> Causation | None:
    """Return the causation of what runs now; None outside handlers and RPC calls."""
    here = _here.get()
    return None if here is None else here.causation


def current_headers() -> dict[str, Any] | None:
    """Return the headers for a message or call made now; None outside handlers and RPC calls."""
    causation = current()
    return None if causation is None else causation.as_headers()


def is_inside() -> bool:
    """Say whether a handler, or a call that came by RPC, is running: a flush must not wait there."""
    return _here.get() is not None


def from_headers(headers: Mapping[str, Any] | None) -> Causation:
    """Read a causation from headers; malformed or absent ones begin a new chain."""
    if isinstance(headers, dict):
        correlation, depth, chain = (headers.get(k) for k in ("correlation", "depth", "chain"))
        if isinstance(correlation, str) and isinstance(depth, int) and isinstance(chain, list):
            return Causation(correlation[:64], max(0, depth), tuple(map(str, chain[-_KEPT_LINKS:])))
    return Causation(uuid.uuid4().hex, 0, ())


class inside:  # noqa: N801 - used like a function; no generator, as it is around every handler call
    """Run a handler, or a call that came by RPC, with this causation.

    Args:
        causation: what led here; None: not known.
        first: where a chain begins with a message: the label of its table, its
            id and its category's name. The causation is made of them when it is
            asked for; most handlers never do.
    """

    __slots__ = ("_causation", "_first", "_token")

    def __init__(
        self, causation: Causation | None, first: tuple[str, int, str] | None = None
    ) -> None:
        self._causation = causation
        self._first = first

    @property
    def causation(self) -> Causation | None:
        """What led here."""
        if self._causation is None and self._first is not None:
            label, identifier, name = self._first
            self._causation = Causation(f"{label}:{identifier}", 1, (name,))
        return self._causation

    def __enter__(self) -> None:
        self._token = _here.set(self)

    def __exit__(self, *_: object) -> None:
        _here.reset(self._token)


_here: ContextVar[inside | None] = ContextVar("hybridcloud_causation", default=None)
