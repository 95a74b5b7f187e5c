"""The app's name and label."""

from __future__ import annotations

from django.apps import AppConfig


class SubjectsConfig(AppConfig):
    name = "tests.benchmarks.subjects"
    label = "bench"
    default_auto_field = "django.db.models.BigAutoField"
