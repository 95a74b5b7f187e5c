"""The table that holds each backfill's position."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from silos.limits import all_silo_model


@all_silo_model
class BackfillCursor(models.Model):
    """How far the backfill of a table has come.

    It lives in the database of the table, and is written in the transaction of the
    messages that it counts. Redis shows the pair (``low_bound``, ``version``); the
    other columns say how to go on.

    Attributes:
        table: the table being walked.
        low_bound: the lowest id that is not walked yet.
        version: the version being walked, or the next one to walk.
        started: whether ``low_bound`` counts; if not, the walk begins at the lowest id.
        upto: the last id of the walk; NULL until its fence is open.
        writers: the fence: the transactions that were writing when the walk was due to begin;
            NULL: not taken.
        row_count: rows walked in this version.
        message_count: messages written in this version.
        rows_expected: how many rows the walk was expected to have when it began.
        recent: messages of the last minute, by second of the database's clock; the rate.
        began_at: when the walk began.
        done_at: when the last walk ended; NULL while one is under way.
    """

    table = models.CharField(max_length=63, primary_key=True)
    low_bound = models.BigIntegerField(default=0, db_default=0)
    version = models.IntegerField(default=1, db_default=1)
    started = models.BooleanField(default=False, db_default=False)
    upto = models.BigIntegerField(null=True)
    writers = models.JSONField(null=True)
    row_count = models.BigIntegerField(default=0, db_default=0)
    message_count = models.BigIntegerField(default=0, db_default=0)
    rows_expected = models.BigIntegerField(null=True)
    recent = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    began_at = models.DateTimeField(null=True)
    done_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        app_label = "hybridcloud"
        db_table = "hybridcloud_backfillcursor"

    def __str__(self) -> str:
        return f"backfill of {self.table}: version {self.version} from {self.low_bound}"
