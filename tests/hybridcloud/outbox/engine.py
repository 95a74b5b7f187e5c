"""What the engine's tests share: categories with every policy, writers, a recording receiver, child processes.

Messages are written by themselves here, without a model, so that a test says
exactly what is in the table.
"""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, transaction

from hybridcloud.hooks import Hooks
from hybridcloud.outbox import (
    CellOutbox,
    Delivery,
    OnFailure,
    OutboxCategory,
    OutboxScope,
    outbox_context,
    process_cell_outbox,
    scope_categories,
)
from hybridcloud.outbox.drain.limits import LIMITS, Limits
from hybridcloud.outbox.store.state import CellFailure, CellLease, CellParked
from silos import SiloMode, assume_silo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

US = "cell_us"
WAIT = 20.0
"""Seconds after which a test that waits for something gives up."""


class Kind(OutboxCategory):
    """A category for each policy that the engine knows, and two that share a shard."""

    PLAIN = 9000
    OTHER = 9001
    BY_CATEGORY = 9002
    BY_CATEGORY_OTHER = 9003
    BY_OBJECT = 9004
    ORDERED = 9005
    ORDERED_BY_OBJECT = 9006
    ATOMIC = 9007
    ONCE = 9008
    LIMITED = 9009
    LIMITED_OBJECT = 9010
    SINGLE = 9011
    GONE = 9012
    SILENT = 9013
    BRIEF = 9014


class Lane(OutboxScope, categories=Kind):
    """One scope for each policy."""

    PLAIN = scope_categories(9000, {Kind.PLAIN, Kind.OTHER, Kind.SILENT}, retired={Kind.GONE})
    BY_CATEGORY = scope_categories(
        9001, {Kind.BY_CATEGORY, Kind.BY_CATEGORY_OTHER}, on_failure=OnFailure.BLOCK_CATEGORY
    )
    BY_OBJECT = scope_categories(9002, {Kind.BY_OBJECT}, on_failure=OnFailure.BLOCK_OBJECT)
    ORDERED = scope_categories(9003, {Kind.ORDERED}, coalesce=False)
    ORDERED_BY_OBJECT = scope_categories(
        9004, {Kind.ORDERED_BY_OBJECT}, coalesce=False, on_failure=OnFailure.BLOCK_OBJECT
    )
    ATOMIC = scope_categories(9005, {Kind.ATOMIC}, coalesce=False, atomic=True)
    ONCE = scope_categories(9006, {Kind.ONCE}, coalesce=False, delivery=Delivery.AT_MOST_ONCE)
    LIMITED = scope_categories(9007, {Kind.LIMITED}, max_attempts=2)
    LIMITED_OBJECT = scope_categories(
        9008, {Kind.LIMITED_OBJECT}, max_attempts=2, on_failure=OnFailure.BLOCK_OBJECT
    )
    SINGLE = scope_categories(9009, {Kind.SINGLE}, coalesce=False, ack=1)
    BRIEF = scope_categories(9010, {Kind.BRIEF}, handler_timeout=60)


def message(
    category: Kind = Kind.PLAIN, shard: int = 1, obj: int = 1, payload: Any = None, **more: Any
) -> CellOutbox:
    """Make a message that is not saved yet."""
    made = category.as_cell_outbox(shard_identifier=shard, object_identifier=obj, payload=payload)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def write(*messages: CellOutbox, flush: bool = False) -> list[int]:
    """Commit messages to the us cell in one transaction; return their ids."""
    with outbox_context(transaction.atomic(using=US), flush=flush):
        for each in messages:
            each.save(using=US)
    return [each.pk for each in messages]


def put(category: Kind = Kind.PLAIN, shard: int = 1, obj: int = 1, payload: Any = None) -> int:
    """Commit one message; return its id."""
    return write(message(category, shard, obj, payload))[0]


def ids(*, shard: int | None = None) -> list[int]:
    """Return the ids that are in the us cell's outbox."""
    rows = CellOutbox.objects.using(US).order_by("id")
    if shard is not None:
        rows = rows.filter(shard_identifier=shard)
    return list(rows.values_list("id", flat=True))


def parked(reason: str | None = None) -> list[int]:
    """Return the ids that are parked in the us cell."""
    rows = CellParked.objects.using(US).order_by("id")
    if reason is not None:
        rows = rows.filter(reason=reason)
    return list(rows.values_list("id", flat=True))


def failures() -> list[CellFailure]:
    """Return the recorded failures of the us cell."""
    return list(CellFailure.objects.using(US).order_by("id"))


def leases() -> list[CellLease]:
    """Return the leases of the us cell."""
    return list(CellLease.objects.using(US).order_by("shard_scope", "shard_identifier"))


def execute(text: str) -> None:
    """Run statements in the us cell."""
    with connections[US].cursor() as cursor:
        cursor.execute(text)


def lose_drainer(
    scope: Lane, shard: int = 1, *, handling: int | None = None, until: str = "2020-01-01"
) -> None:
    """Leave the lease of a drainer that vanished, maybe while it handled a message."""
    CellLease.objects.using(US).create(
        shard_scope=int(scope),
        shard_identifier=shard,
        owner="lost",
        token=5,
        until=f"{until}T00:00:00Z",
        suspect=handling is not None,
        handling=handling,
    )


def make_due() -> None:
    """Let every failure's next try be now, as if its backoff were over."""
    CellFailure.objects.using(US).update(scheduled_for="2020-01-01T00:00:00Z")


def pass_time(seconds: float) -> None:
    """Let all leases of the us cell, and this process's drainers that hold some, be older by so much."""
    from hybridcloud.outbox.drain.lease import keeper

    with connections[US].cursor() as cursor:
        cursor.execute(
            "UPDATE hybridcloud_celllease SET until = until - make_interval(secs => %s)", [seconds]
        )
    for each in list(keeper()._passes):
        each.renewed_at -= seconds
        if each.handler_since is not None:
            each.handler_since -= seconds


@dataclass
class Tuned:
    """The limits of this test's drainers, which `tune` changes."""

    limits: Limits = LIMITS


tuned = Tuned()


def tune(**changes: Any) -> None:
    """Give the drainers of this test other limits from now on."""
    tuned.limits = replace(tuned.limits, **changes)


def drain_us(**more: Any) -> int:
    """Drain the us cell's outbox as a task does, until nothing is due."""
    from hybridcloud.outbox.drain.loop import Drainer

    with assume_silo(SiloMode.CELL, cell="us"):
        return Drainer(CellOutbox, US, limits=tuned.limits, **more).sweep()


@dataclass
class Recorder:
    """A receiver that remembers its calls and does what it is told.

    Attributes:
        calls: (category, object, payload) of each call.
        act: called with the message's keyword arguments; may raise.
    """

    act: Callable[..., None] | None = None
    calls: list[tuple[int, int, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, *, sender: Any, **arguments: Any) -> None:
        arguments.pop("signal")
        self.calls.append((int(sender), arguments["object_identifier"], arguments["payload"]))
        self.messages.append(arguments)
        if self.act is not None:
            self.act(category=sender, **arguments)

    @property
    def objects(self) -> list[int]:
        """The objects that were handled, in order."""
        return [each[1] for each in self.calls]


@contextmanager
def listening(*kinds: Kind, act: Callable[..., None] | None = None) -> Iterator[Recorder]:
    """Receive messages of these categories inside the block."""
    recorder = Recorder(act)
    for kind in kinds:
        process_cell_outbox.connect(recorder, sender=kind, weak=False)
    try:
        yield recorder
    finally:
        for kind in kinds:
            process_cell_outbox.disconnect(recorder, sender=kind)


class Gate(Hooks):
    """Stops one thread at a seam until it is let through.

    Args:
        seam: the seam's name.
        when: whether to stop at this call; default: the first one only.
    """

    def __init__(self, seam: str, when: Callable[..., bool] | None = None) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._when = when
        self._seam = seam

    def _stop(self, *arguments: Any) -> None:
        if self.reached.is_set() or (self._when and not self._when(*arguments)):
            return
        self.reached.set()
        assert self.open.wait(WAIT), f"nobody opened the gate at {self._seam}"


def gate(seam: str, when: Callable[..., bool] | None = None) -> Gate:
    """Make a gate at a seam; install it with ``hooks.installed``."""
    kind = type(f"GateAt_{seam}", (Gate,), {seam: Gate._stop})
    made = kind(seam, when)
    assert isinstance(made, Gate)
    return made


class Worker(threading.Thread):
    """Runs a function in a thread with its own connections, and gives back what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._context = contextvars.copy_context()
        self._function = function
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._context.run(self._function)
        except BaseException as exc:  # noqa: BLE001 - given to the thread that waits
            self.error = exc
        finally:
            connections.close_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> Any:
        """Wait for the thread; raise what it raised."""
        self.join(WAIT)
        assert not self.is_alive(), "the thread did not end"
        if self.error is not None:
            raise self.error
        return self.result


class Child:
    """A drainer in a process of its own, which tells what it does and waits where it is told to.

    Args:
        script: a name in ``child.py``.
        arguments: its keyword arguments, as JSON.
    """

    def __init__(self, script: str, **arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hybridcloud.outbox.child", script, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    @staticmethod
    def environment() -> dict[str, str]:
        """Return an environment in which the settings find the test databases."""
        env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        for alias in ("control", "cell_us", "cell_eu"):
            conf = connections[alias].settings_dict
            port = f":{conf['PORT']}" if conf["PORT"] else ""
            login = f"{conf['USER']}:{conf['PASSWORD']}@" if conf["USER"] else ""
            env[f"DATABASE_URL_{alias.upper()}"] = (
                f"postgresql://{login}{conf['HOST']}{port}/{conf['NAME']}"
            )
        return env

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def expect(self, word: str) -> str:
        """Read lines until one begins with a word; return the rest of it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word) :].strip()
        raise AssertionError(f"the child ended before it said {word!r}")

    def go(self) -> None:
        """Let the child go on from where it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        self.process.wait(WAIT)
