"""Rewrites stored kill switches; everything is ``{"all": true}``.

A member that is null, empty or ``"*"`` meant any, and is left out; a switch of no other member
stopped everything.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from silos.limits import EVERY_SILO

KEY = "hybridcloud.disabled_shards"


def rewritten(entry: Any) -> Any:
    """Return an entry as it is written from now on."""
    if not isinstance(entry, dict) or entry == {"all": True}:
        return entry
    given = {name: value for name, value in entry.items() if value not in (None, "", "*")}
    if not given:
        return {"all": True}
    # Text was read as a number.
    identifier = given.get("identifier")
    if isinstance(identifier, str) and identifier.isascii() and identifier.isdecimal():
        given["identifier"] = int(identifier)
    return given


def rewrite(apps: Any, schema_editor: Any) -> None:
    """Rewrite the option of this database, if it is set."""
    rows = apps.get_model("hybridcloud", "Option").objects.using(schema_editor.connection.alias)
    for row in rows.filter(key=KEY):
        if isinstance(row.value, list):
            row.value = [rewritten(entry) for entry in row.value]
            row.save(update_fields=["value"])


class Migration(migrations.Migration):
    dependencies = (("hybridcloud", "0005_failures_of_shard"),)
    operations = (
        migrations.RunPython(
            rewrite, migrations.RunPython.noop, elidable=True, hints={"silo": EVERY_SILO}
        ),
    )
