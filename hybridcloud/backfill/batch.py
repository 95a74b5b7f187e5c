"""Walks one batch of a table and writes its messages.

The messages of a batch and the position after it are committed together: in one
statement where SQL can make the messages, else in one transaction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from django.db import OperationalError, connections, transaction

from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill import statements
from hybridcloud.backfill.cursor import Cursor
from hybridcloud.backfill.versions import find_target_cells
from hybridcloud.causation import current_headers
from hybridcloud.outbox.declare.category import validated_scope
from hybridcloud.outbox.declare.identifiers import shard_field
from hybridcloud.outbox.store.fence import Fence, newest_id
from hybridcloud.outbox.write.after_commit import Batch, announce
from hybridcloud.outbox.write.context import write_messages
from hybridcloud.outbox.write.insert import as_json
from hybridcloud.outbox.write.messages import produce, uses_default
from hybridcloud.outbox.write.one_statement import scope_for_sql

if TYPE_CHECKING:
    from collections.abc import Collection

    from hybridcloud.outbox.declare.scope import OutboxScope
    from hybridcloud.outbox.write.mixins import ProducingModel

MOST_BY_SQL: Final = 10_000
MOST_BY_PYTHON: Final = 1_000
LEAST_ID: Final = -(2**63) + 1
_LOCK_NOT_AVAILABLE: Final = "55P03"
_EXACT_BELOW: Final = 100_000


@dataclass(frozen=True, slots=True)
class BackfillBatch:
    """What one call of a backfill did.

    Attributes:
        low: the lowest id that was walked; the position if there were no rows.
        up: the highest id that was walked; one less than ``low`` if there were no rows.
        version: the version being walked.
        has_more: whether this version has more to walk.
        count: how many rows were walked.
        messages: how many messages were written for them.
        waits_for: writers that must end before the walk can begin; the rows they wrote are walked too.
        lost: whether another process moved the cursor in the meantime, so that nothing was done.
        cursor: the position after the batch.
    """

    low: int
    up: int
    version: int
    has_more: bool
    count: int
    messages: int
    cursor: Cursor
    waits_for: tuple[str, ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """The walk of one model on one database.

    Attributes:
        model: the producing model.
        alias: the database.
        tables: the tables whose messages count towards the rate, the model's own included.
    """

    model: type[ProducingModel]
    alias: str
    tables: tuple[str, ...]

    @property
    def by_sql(self) -> bool:
        """Whether SQL alone can make the messages."""
        return scope_for_sql(self.model) is not None

    def step(
        self, cursor: Cursor, *, target: int, most: int, used: int | None = None
    ) -> BackfillBatch | None:
        """Walk the next rows, or first begin the version and wait for its fence.

        Args:
            cursor: the position as it was read.
            target: the version to reach.
            most: how many rows to walk at most.
            used: messages of the last minute as they were read; nothing is done
                if others have written more since. None: no rate applies.

        Returns:
            What was done; None if the target is reached already.
        """
        if cursor.version > target:
            return None
        if cursor.version < target:
            # The next version, or a half-walked one that is no longer wanted.
            again = cursors.begin_again(self.alias, cursor, target)
            if again is None:
                return self._lost(cursor)
            cursor = again
        if cursor.upto is None:
            begun = self._begin(cursor)
            if isinstance(begun, BackfillBatch):
                cursors.show(begun.cursor)
                return begun
            cursor = begun
        if self.by_sql:
            row = self._by_sql(cursor, most=min(most, MOST_BY_SQL), used=used)
        else:
            row = self._by_python(cursor, most=min(most, MOST_BY_PYTHON), used=used)
        if row is None:
            return self._lost(cursor)
        count, messages, low, up, *columns = row
        after = Cursor.of_row(columns)
        cursors.show(after)
        return BackfillBatch(
            low=cursor.low_bound if low is None else low,
            up=cursor.low_bound - 1 if up is None else up,
            version=cursor.version,
            has_more=after.version == cursor.version,
            count=count,
            messages=messages,
            cursor=after,
        )

    def _begin(self, cursor: Cursor) -> Cursor | BackfillBatch:
        """Take the fence, and once it is open note how far the walk goes.

        The walk ends at the newest row there is when the fence opens. What commits
        later was written by code that knows the model's category, and has written
        a message of its own.
        """
        connection, table = connections[self.alias], self.model._meta.db_table
        held: Cursor | None = cursor
        if cursor.writers is None:
            held = cursors.hold_at(self.alias, cursor, Fence.take(connection, table).writers)
        if held is None:
            return self._lost(cursor)
        left = Fence.kept(table, held.writers or ()).left(connection)
        if left:
            return self._nothing(held, has_more=True, waits_for=left)
        newest = newest_id(connection, table, column=self._key.column)
        if newest is None or (held.started and newest < held.low_bound):
            done = cursors.finish(self.alias, held)
            return self._lost(held) if done is None else self._nothing(done, has_more=False)
        going = cursors.let_go(self.alias, held, upto=newest, expected=self._expected())
        return self._lost(held) if going is None else going

    def _by_sql(self, cursor: Cursor, *, most: int, used: int | None) -> Any:
        model = self.model
        scope = cast("OutboxScope", scope_for_sql(model))
        validated_scope(scope.value, model.category.value)
        connection, outbox = connections[self.alias], model.outbox_model()
        quote = connection.ops.quote_name
        shard: Any = shard_field(scope, model)
        text = statements.batch(
            table=quote(model._meta.db_table),
            pk=quote(self._key.column),
            shard=quote(shard.column),
            outbox=outbox.tables().outbox,
        )
        params = {
            **self._params(cursor, most=most, used=used),
            "scope": scope.value,
            "category": model.category.value,
            "headers": as_json(outbox, "headers", current_headers(), of="the headers"),
        }
        with connection.cursor() as sql:
            sql.execute(text, params)
            row = sql.fetchone()
        if row is not None and row[1]:
            announce(connection, Batch(outbox, Counter({model.category.value: row[1]}), []))
        return row

    def _by_python(self, cursor: Cursor, *, most: int, used: int | None) -> Any:
        """Do the same with instances, for messages that Python makes.

        A payload is read here and delivered later, so the rows are locked: no
        payload may be written after a newer one. A transaction that holds a row for
        long makes batches small, so that other rows do not wait with it.
        """
        for timeout, size in (("250ms", most), ("250ms", max(1, most // 20)), ("1s", 1)):
            try:
                return self._attempt(cursor, most=size, used=used, timeout=timeout)
            except OperationalError as exc:
                if getattr(exc.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
        return None

    def _attempt(self, cursor: Cursor, *, most: int, used: int | None, timeout: str) -> Any:
        params = self._params(cursor, most=most, used=used)
        connection = connections[self.alias]
        in_outer_block = connection.in_atomic_block
        with transaction.atomic(using=self.alias), connection.cursor() as sql:
            sql.execute(statements.IS_GO, params)
            if not sql.fetchone():
                return None
            rows = self.model.outbox_rows.using(self.alias).filter(
                pk__gte=params["from"], pk__lte=params["upto"]
            )
            if self._reads_rows:
                sql.execute("SELECT set_config('lock_timeout', %s, true)", [timeout])
                rows = rows.select_for_update(no_key=True, of=("self",))
            instances = list(rows.order_by("pk")[:most])
            if self._reads_rows and in_outer_block:
                # Otherwise it would apply to the rest of the caller's transaction.
                sql.execute("SET LOCAL lock_timeout TO DEFAULT")
            params |= {
                "row_count": len(instances),
                "message_count": self._write(instances),
                "least": instances[0].pk if instances else None,
                "last": instances[-1].pk if instances else None,
            }
            sql.execute(statements.ADVANCE, params)
            return sql.fetchone()

    def _write(self, instances: Collection[ProducingModel]) -> int:
        cells = find_target_cells(self.model)
        if cells is None:
            return produce(self.model, instances, using=self.alias, flush=False)
        messages = [
            message
            for instance in instances
            for message in instance.messages()
            if getattr(message, "cell_name", None) in cells
        ]
        write_messages(messages, using=self.alias, flush=False)
        return len(messages)

    @property
    def _key(self) -> Any:
        return self.model._meta.pk

    @property
    def _reads_rows(self) -> bool:
        """Whether messages hold anything of the row besides its ids."""
        return not (
            self.model.has_default_messages() and uses_default(self.model, "payload_for_update")
        )

    def _params(self, cursor: Cursor, *, most: int, used: int | None) -> dict[str, Any]:
        return {
            "table": cursor.table,
            "tables": list(self.tables),
            "version": cursor.version,
            "low": cursor.low_bound,
            "started": cursor.started,
            "upto": cursor.upto,
            "used": used,
            "most": most,
            "from": cursor.low_bound if cursor.started else LEAST_ID,
        }

    def _expected(self) -> int:
        """Return how many rows there are; an estimate if counting takes long."""
        table = connections[self.alias].ops.quote_name(self.model._meta.db_table)
        with connections[self.alias].cursor() as sql:
            sql.execute(statements.ESTIMATE, {"table": table})
            (estimate,) = sql.fetchone()
            if estimate < _EXACT_BELOW:
                sql.execute(statements.count_up_to(table, _EXACT_BELOW))
                (count,) = sql.fetchone()
                estimate = max(estimate, count) if count == _EXACT_BELOW else count
        return int(estimate)

    def _nothing(
        self, cursor: Cursor, *, has_more: bool, waits_for: tuple[str, ...] = (), lost: bool = False
    ) -> BackfillBatch:
        low = cursor.low_bound
        return BackfillBatch(
            low, low - 1, cursor.version, has_more, 0, 0, cursor, waits_for=waits_for, lost=lost
        )

    def _lost(self, cursor: Cursor) -> BackfillBatch:
        return self._nothing(cursor, has_more=True, lost=True)
