"""Tells autovacuum that the engine's tables are queues: small, and all of it churn."""

from __future__ import annotations

from django.db import migrations

_OUTBOX = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
    "autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off"
)
_SMALL = "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000"
_TABLES = {
    "celloutbox": _OUTBOX,
    "controloutbox": _OUTBOX,
    "celllease": _SMALL,
    "controllease": _SMALL,
    "cellfailure": _SMALL,
    "controlfailure": _SMALL,
}


def _names(options: str) -> str:
    return ", ".join(each.split("=")[0].strip() for each in options.split(","))


class Migration(migrations.Migration):
    dependencies = [("hybridcloud", "0003_foreign_keys")]

    operations = [
        migrations.RunSQL(
            f"ALTER TABLE hybridcloud_{name} SET ({options})",
            f"ALTER TABLE hybridcloud_{name} RESET ({_names(options)})",
            hints={"model_name": name},
        )
        for name, options in _TABLES.items()
    ]
