"""The system checks of settings, models, receivers and the Celery app.

E001 unknown key · E002 wrong value · E003 category without scope · E004 outbox of another silo ·
E005 no shard key · E006 manager that produces nothing · W009 receiver without ``**kwargs`` ·
E014 replicated model without handlers · E015 custom ``on_delete`` · E016 ``on_delete`` in the
database · E017 identifier that is not an integer · E018 receiver that is never called ·
W021 no beat schedule · W022 tasks that are lost or run twice · W023 no broker · E030 weak RPC secret ·
W033 no rotation of RPC secrets · W042 notifications that do not arrive · E046 sequence with a cache ·
E047 psycopg without libpq · W048 scope that no switch of its owners stops
"""

from __future__ import annotations

from typing import Final

from django.core.checks import Tags, register

TAG: Final = "hybridcloud"


def register_all() -> None:
    """Register the checks; safe to call twice."""
    # They import models. `driver` runs before models can be imported.
    from hybridcloud.checks import (  # noqa: PLC0415
        celery,
        configuration,
        driver,
        handlers,
        listening,
        models,
        sequences,
    )

    for check in (
        driver.check_driver,
        configuration.check_settings,
        configuration.check_pinned_options,
        models.check_scopes,
        models.check_switches,
        models.check_producing_models,
        handlers.check_receivers,
        handlers.check_senders,
        celery.check_beat_schedule,
        celery.check_delivery,
        celery.check_broker,
    ):
        register(check, TAG)
    for check in (configuration.check_secret_strength, configuration.check_rotation):
        register(check, TAG, Tags.security, deploy=True)
    # Not under TAG: `check --tag hybridcloud` must work without a database.
    register(sequences.check_sequences, Tags.database)
    register(listening.check_listening, Tags.database)
