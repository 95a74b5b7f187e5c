"""Leases: one drainer per shard (rules 6 to 8).

A lease is a row with a token and a time. Its drainer renews it between handlers, and a thread of
the process while a handler runs long. Failures and releases are fenced by the token.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, connections

from hybridcloud import hooks
from hybridcloud.conf import settings
from hybridcloud.outbox.drain.due import due_params
from hybridcloud.outbox.store import switches as kill_switches
from hybridcloud.outbox.store.key import ShardKey
from hybridcloud.outbox.store.session import Engine
from silos import SiloMode
from silos.cells import all_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridcloud.outbox.drain.due import Cursor
    from hybridcloud.outbox.store.session import Rows
    from hybridcloud.outbox.store.switches import Switches
    from hybridcloud.outbox.store.tables import OutboxTable

_LOG = logging.getLogger(__name__)


def owner_name() -> str:
    """Return the owner that this process writes into its leases."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Leases:
    """The shards that one pass of one drainer owns.

    Attributes:
        keys: the shards, in the order of their claim.
        suspect: whether the last drainer of the (only) shard vanished.
        handling: the message that it was handling then.
        marked: the suspect shard whose running message is on record; None: none.
        lost: shards that another drainer has taken since.
        read: what was read with the claim; None: nothing yet.
        handler_since: when the handler that runs began, by the monotonic clock.
        handler_timeout: seconds after which it counts as hung; None: as settings say.
        renew_after: seconds of a lease after which it is renewed between handlers.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.token = secrets.randbits(62)
        self.keys: list[ShardKey] = []
        self.suspect = False
        self.handling: int | None = None
        self.marked: ShardKey | None = None
        self.lost: set[ShardKey] = set()
        self.read: Rows | None = None
        self.renewed_at = time.monotonic()
        self.handler_since: float | None = None
        self.handler_timeout: float | None = None
        self._conf = settings()
        self.renew_after = self._conf.renew_after

    def _params(self, **more: Any) -> dict[str, Any]:
        # Read before the statement runs, so that a lease never seems longer than it is.
        self.renewed_at = time.monotonic()
        lease = self._conf.lease
        return {"owner": owner_name(), "token": self.token, "lease": lease, **more}

    def _took(self, rows: Sequence[tuple[Any, ...]], *, suspect: bool) -> bool:
        width = len(self.engine.tables.sharding_columns)
        # In key order, as everywhere: the statements return leases in any order.
        self.keys = sorted(ShardKey(*row[:width]) for row in rows)
        self.suspect = suspect
        self.handling = rows[0][width] if suspect and rows and len(rows[0]) > width else None
        # The mark stays until this drainer has settled what the last one was handling (rule 8).
        self.marked = self.keys[0] if self.handling is not None else None
        if self.keys and hooks.active.after_claim:
            for seam in hooks.active.after_claim:
                seam([key.columns() for key in self.keys])
        return bool(self.keys)

    def claim_due(
        self,
        *,
        after: Cursor,
        most: int,
        switches: Switches,
        cell: str | None = None,
        heed_backoff: bool = True,
    ) -> bool:
        """Claim up to ``most`` due shards behind a cursor."""
        params = due_params(switches, after=after, most=most, cell=cell, heed_backoff=heed_backoff)
        off = bool(params["off_scopes"] or params["off_shards"])
        rows = self.engine.query("claim_due", self._params(**params), off=off)
        return self._took(rows, suspect=False)

    def claim_known(self, keys: Sequence[ShardKey], *, heed_backoff: bool = True) -> bool:
        """Claim those shards that are free, not in backoff and not suspect."""
        params = self._params(heed=heed_backoff, **self.engine.keys(keys))
        rows = self.engine.query("claim_known", params, one=len(keys) == 1)
        return self._took(rows, suspect=False)

    def claim_and_read(self, key: ShardKey, name: str, params: Mapping[str, Any]) -> bool:
        """Claim one shard and read it by a named statement, in one round trip."""
        # Two statements: the read must see what the last owner deleted, which it committed in the
        # transaction that released the shard (rule 1).
        params = {**params, **self._params(heed=True, **self.engine.keys([key]))}
        statements = [self.engine.sql(each, one=True) for each in ("claim_known", name)]
        taken, self.read = self.engine.results(statements, params)
        return self._took(taken, suspect=False)

    def claim_suspect(
        self,
        *,
        switches: Switches,
        only: Sequence[ShardKey] | None = None,
        heed_backoff: bool = True,
    ) -> bool:
        """Claim one shard that must be drained alone (rule 8)."""
        is_control = self.engine.outbox.silo_mode is SiloMode.CONTROL
        cells = [cell.name for cell in all_cells()] if is_control else [None]
        params = self._params(
            heed=heed_backoff,
            only=None if only is None else [str(key) for key in only],
            off=[str(key) for key in switches.named_shards(cells)],
            off_scopes=list(switches.scopes),
            off_cells=list(switches.cells),
            off_lanes=[f"{cell}:{scope}" for cell, scope in switches.scopes_in_cells()],
        )
        # An expired lease, else a free shard in which a group that crashed its worker is due.
        for name in ("claim_suspect", "claim_crashed"):
            if self._took(self.engine.query(name, params), suspect=True):
                return True
        return False

    def owns(self, key: ShardKey, now: float | None = None) -> bool:
        """Say whether the shard is still this drainer's; renew if it is time.

        Asked before each handler: a worker that was stalled past its lease handles nothing more of
        a shard that another drainer has taken (rule 7).
        """
        if (time.monotonic() if now is None else now) - self.renewed_at > self.renew_after:
            self.renew()
        return not (self.lost and key in self.lost)

    def renew(self) -> None:
        """Renew all leases of the pass, and note those that are lost."""
        started = time.monotonic()
        # All of the pass by its one token, however many shards it has.
        rows = self.engine.query("renew", {"tokens": [self.token], "lease": self._conf.lease})
        self.found({ShardKey(*row[1:]) for row in rows}, started)

    def found(self, keys: set[ShardKey], at: float) -> None:
        """Note the leases that a renewal begun ``at`` found; others are lost."""
        lost = [key for key in self.keys if key not in keys and key not in self.lost]
        self.lost.update(lost)
        self.renewed_at = at
        for seam in hooks.active.after_renew:
            seam(len(lost))

    def mark(self, key: ShardKey, message_id: int) -> bool:
        """Mark a message of a suspect shard as running; False: the shard is lost."""
        params = {"handling": message_id, "token": self.token, **self.engine.keys([key])}
        # Committed before the handler runs, so that a crash counts against it alone (rule 8).
        if not self.engine.query("mark", params):
            self.lost.add(key)
            return False
        self.marked = key
        return True

    def releasing(self, keys: Sequence[ShardKey]) -> tuple[list[str], dict[str, Any]]:
        """Return the statement that releases shards, and its parameters."""
        if not keys:
            return [], {}
        # Forgotten before the statement runs: if it fails, the leases expire by themselves.
        given = set(keys)
        self.keys = [key for key in self.keys if key not in given]
        return [self.engine.sql("release")], {"token": self.token, **self.engine.keys(keys)}

    def release(self) -> None:
        """Give all remaining shards back."""
        statements, params = self.releasing(list(self.keys))
        if statements:
            self.engine.run(statements, params, relaxed=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the keeper renew these leases during a block."""
        # Inside a test case they are in its transaction, which no other connection sees.
        if self.engine.in_testcase:
            yield
            return
        keeper().add(self)
        try:
            yield
        finally:
            keeper().discard(self)


def claim_if_due(outbox: type[OutboxTable], key: ShardKey, *, alias: str) -> Leases | None:
    """Claim a shard's lease; None if it isn't due or is taken."""
    leases, switches = Leases(Engine(outbox, alias)), kill_switches.current()
    if switches.stops(key):
        return None
    # A lost drainer's shard is not free, but for the one who drains it alone.
    if leases.claim_known([key]) or leases.claim_suspect(switches=switches, only=[key]):
        return leases
    return None


class Keeper:
    """The thread of a process that renews leases of long handlers."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._passes: set[Leases] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, leases: Leases) -> None:
        """Watch a pass."""
        with self._lock:
            self._passes.add(leases)
            # Started with the first pass, and again if the thread has ended.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="hybridcloud-lease-keeper", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def discard(self, leases: Leases) -> None:
        """Watch a pass no longer."""
        with self._lock:
            self._passes.discard(leases)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._watching():
                time.sleep(settings().renew_every)
                try:
                    self._renew_long_running()
                except (DatabaseError, InterfaceError):
                    _LOG.exception("Leases not renewed; the next try is in a moment")
                    connections.close_all()
            # No connection is kept open while there is nothing to renew.
            connections.close_all()

    def _watching(self) -> bool:
        with self._lock:
            return bool(self._passes)

    def _renew_long_running(self) -> None:
        now, conf = time.monotonic(), settings()
        # A copy: no pass waits for the lock while the database answers.
        with self._lock:
            passes = list(self._passes)
        due: dict[tuple[type, str], list[Leases]] = {}
        for leases in passes:
            since, longest = leases.handler_since, leases.handler_timeout or conf.handler_timeout
            # Beyond its timeout a handler counts as hung, and another drainer gets its shard.
            if since is not None and conf.renew_every <= now - since < longest:
                due.setdefault((leases.engine.outbox, leases.engine.alias), []).append(leases)
        for (outbox, alias), group in due.items():
            engine = Engine(outbox, alias)
            params = {"tokens": [leases.token for leases in group], "lease": conf.lease}
            found: dict[int, set[ShardKey]] = {}
            for token, *key in engine.query("renew", params):
                found.setdefault(token, set()).add(ShardKey(*key))
            for leases in group:
                leases.found(found.get(leases.token, set()), now)


_the_keeper: Keeper | None = None


def keeper() -> Keeper:
    """Return this process's keeper."""
    global _the_keeper  # noqa: PLW0603 - one per process, made anew after a fork
    if _the_keeper is None or _the_keeper.pid != os.getpid():
        _the_keeper = Keeper()
    return _the_keeper
