"""Causation: the chain of messages that led to what runs now.

It limits loops of messages and calls across silos (rule 9). A causation is kept
in a context variable, sent in the ``headers`` of messages and RPC calls, and
extended by one link at each handler.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

type First = tuple[str, int, str]
"""The first message of a chain: the label of its table, its id and its category's name."""

_KEPT_LINKS = 32


@dataclass(frozen=True, slots=True)
class Causation:
    """The chain of messages that led to what runs now.

    Attributes:
        correlation_id: the same for everything that one change caused.
        depth: the number of handlers in the chain, across all silos.
        chain: the names of their categories, newest last; only the newest 32 are kept.
    """

    correlation_id: str
    depth: int
    chain: tuple[str, ...]

    @classmethod
    def begun(cls, first: First) -> Self:
        """Return the causation in the handler of a chain's first message."""
        label, identifier, name = first
        return cls(f"{label}:{identifier}", 1, (name,))

    def followed_by(self, link: str) -> Causation:
        """Return the causation in the handler of a message of category ``link``."""
        return Causation(self.correlation_id, self.depth + 1, (*self.chain, link)[-_KEPT_LINKS:])

    def as_headers(self) -> dict[str, Any]:
        """Return the headers of messages and calls, ready for JSON."""
        return {"correlation": self.correlation_id, "depth": self.depth, "chain": list(self.chain)}


def current() -> Causation | None:
    """Return the current causation; None outside handlers and RPC calls."""
    here = _here.get()
    if isinstance(here, tuple):
        return Causation.begun(here)
    return here if isinstance(here, Causation) else None


def current_headers() -> dict[str, Any] | None:
    """Return the headers for a message that is written or a call made now.

    None outside handlers and RPC calls.
    """
    causation = current()
    return None if causation is None else causation.as_headers()


def is_inside() -> bool:
    """Return whether a handler or an incoming RPC call is running.

    A flush must not wait there.
    """
    return _here.get() is not None


def from_headers(headers: Mapping[str, Any] | None) -> Causation:
    """Read a causation from headers; missing or invalid ones begin a chain."""
    if isinstance(headers, dict):
        correlation, depth, chain = (headers.get(k) for k in ("correlation", "depth", "chain"))
        if isinstance(correlation, str) and isinstance(depth, int) and isinstance(chain, list):
            return Causation(correlation[:64], max(0, depth), tuple(map(str, chain[-_KEPT_LINKS:])))
    return Causation(uuid.uuid4().hex, 0, ())


class inside:  # noqa: N801 - used like a function
    """Run a handler or an incoming RPC call with this causation.

    None means that the causation is unknown.
    """

    __slots__ = ("_causation", "_token")

    def __init__(self, causation: Causation | None) -> None:
        self._causation = causation

    def __enter__(self) -> None:
        self._token = _here.set(self._causation or _UNKNOWN)

    def __exit__(self, *_: object) -> None:
        _here.reset(self._token)


class beginning:  # noqa: N801 - used like a function
    """Run handlers one after another, each at the beginning of a chain.

    ``with`` returns a function. Call it before each handler with one tuple of
    the label of the message's table, the message's id and its category's name,
    and with None before anything that is not a handler. The causation is only
    built when it is needed, which in most handlers is never.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> Callable[[First | Causation | None], object]:
        self._token = _here.set(None)
        return _here.set

    def __exit__(self, *_: object) -> None:
        _here.reset(self._token)


_UNKNOWN: Final = object()
_here: ContextVar[object] = ContextVar("hybridcloud_causation", default=None)
