"""The durable copy of each backfill's position: without it a flushed redis would begin every table again."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from silos.limits import all_silo_model


@all_silo_model
class BackfillCursor(models.Model):
    """How far the backfill of a table has come, in the database of the table itself.

    Written in the transaction of the messages that it counts. The pair
    (``low_bound``, ``version``) is what redis shows; the rest says how to go on.

    Attributes:
        table: the table that is walked.
        low_bound: the least id that is not walked yet.
        version: the version that is being walked, or would be the next.
        started: whether ``low_bound`` counts; if not, the walk begins at the least id.
        upto: the last id of the walk; NULL until its fence is open.
        writers: the fence: who was writing when the walk was to begin; NULL: not taken.
        row_count: rows walked in this version.
        message_count: messages written in this version.
        rows_expected: rows that the walk was expected to have when it began.
        recent: messages by second (of the database's clock) of the last minute; the rate.
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
