"""What caused what, across silos: without it a loop of messages and calls would go round for ever (rule 9).

A causation is carried by a context variable, travels in the ``headers`` of
messages and RPC calls, and grows by one link at each handler.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

type First = tuple[str, int, str]
"""What a chain begins with: the label of a message's table, its id and its category's name."""

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

    @classmethod
    def begun(cls, first: First) -> Self:
        """Return the causation inside the handler of a message that nothing known has caused."""
        label, identifier, name = first
        return cls(f"{label}:{identifier}", 1, (name,))

    def followed_by(self, link: str) -> Causation:
        """Return the causation inside the handler of ``link``."""
        return Causation(self.correlation_id, self.depth + 1, (*self.chain, link)[-_KEPT_LINKS:])

    def as_headers(self) -> dict[str, Any]:
        """Return what messages and calls carry, as JSON."""
        return {"correlation": self.correlation_id, "depth": self.depth, "chain": list(self.chain)}


def current() -> Causation | None:
    """Return the causation of what runs now; None outside handlers and RPC calls."""
    here = _here.get()
    if isinstance(here, tuple):
        return Causation.begun(here)
    return here if isinstance(here, Causation) else None


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


class inside:  # noqa: N801 - used like a function
    """Run a handler, or a call that came by RPC, with this causation; None: it is not known."""

    __slots__ = ("_causation", "_token")

    def __init__(self, causation: Causation | None) -> None:
        self._causation = causation

    def __enter__(self) -> None:
        self._token = _here.set(self._causation or _UNKNOWN)

    def __exit__(self, *_: object) -> None:
        _here.reset(self._token)


class beginning:  # noqa: N801 - used like a function
    """Run handlers one after another, the causation of each beginning with its message.

    What the block gives is to be called before each handler with the label of
    the message's table, its id and its category's name, as one tuple; and with
    None before anything that is not a handler. A causation is made of them when
    it is asked for; most handlers never do.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> Callable[[First | None], object]:
        self._token = _here.set(None)
        return _here.set

    def __exit__(self, *_: object) -> None:
        _here.reset(self._token)


_UNKNOWN: Final = object()
_here: ContextVar[object] = ContextVar("hybridcloud_causation", default=None)
