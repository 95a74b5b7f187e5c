"""The tables of runtime options and of their changes."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from silos.limits import all_silo_model


class _Change(models.Model):
    """An option's value, who set it and why."""

    value = models.JSONField()
    by = models.CharField(max_length=200, blank=True)
    reason = models.TextField(blank=True)

    class Meta:
        abstract = True


@all_silo_model
class Option(_Change):
    """An option that is set in this silo.

    Options without a row have their registered default.
    """

    key = models.CharField(max_length=200, primary_key=True)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "hybridcloud_option"

    def __str__(self) -> str:
        return self.key


@all_silo_model
class OptionHistory(_Change):
    """One change of an option in this silo; NULL means it was unset."""

    key = models.CharField(max_length=200)
    value = models.JSONField(null=True)
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "hybridcloud_optionhistory"
        indexes = (models.Index(fields=["key", "id"], name="hybridcloud_optionhistory_key"),)

    def __str__(self) -> str:
        return f"{self.key} at {self.at}"
