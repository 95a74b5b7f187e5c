"""What the backfill's tests share: rows that no model wrote, so without messages, and what came of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import connections

from fixtures.acme.categories import Category
from fixtures.acme.models import Organization
from hybridcloud.backfill import cursor as cursors
from hybridcloud.backfill.run import process_outbox_backfill_batch
from hybridcloud.outbox import CellOutbox, ControlOutbox
from hybridcloud.redis import redis_client

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridcloud.backfill.batch import BackfillBatch

US = "cell_us"
CONTROL = "control"
ORGANIZATIONS = "acme_organization"


def execute(statement: str, params: Any = None, *, alias: str = US) -> list[tuple[Any, ...]]:
    """Run SQL, which no model sees."""
    with connections[alias].cursor() as sql:
        sql.execute(statement, params)
        return sql.fetchall() if sql.description else []


def fill_organizations(ids: Iterable[int], *, alias: str = US) -> None:
    """Make organizations as they were before anybody replicated them: without a message."""
    execute(
        "INSERT INTO acme_organization (id, name, slug) SELECT i, 'o', 'o' || i FROM unnest(%s::bigint[]) i",
        [list(ids)],
        alias=alias,
    )


def fill_members(ids: Iterable[int], *, organization: int) -> None:
    """Make members without a message."""
    execute(
        "INSERT INTO acme_organizationmember (id, organization_id, user_id, role)"
        " SELECT i, %s, i, 'member' FROM unnest(%s::bigint[]) i",
        [organization, list(ids)],
    )


def fill_projects(ids: Iterable[int], *, organization: int) -> None:
    """Make projects, whose messages have a payload, without a message."""
    execute(
        "INSERT INTO acme_project (id, organization_id, name, slug, archived)"
        " SELECT i, %s, 'p', 'p' || i, false FROM unnest(%s::bigint[]) i",
        [organization, list(ids)],
    )


def fill_tokens(ids: Iterable[int]) -> None:
    """Make a user and tokens of theirs, which go to every cell, without a message."""
    (user,) = execute(
        "INSERT INTO acme_user (username, first_name, last_name, email, password, is_staff, is_active,"
        " is_superuser, date_joined) VALUES ('filled', '', '', '', '', false, true, false, now()) RETURNING id",
        alias=CONTROL,
    )[0]
    execute(
        "INSERT INTO acme_apitoken (id, user_id, name, token_hash)"
        " SELECT i, %s, 't', 't' || i FROM unnest(%s::bigint[]) i",
        [user, list(ids)],
        alias=CONTROL,
    )


def written(category: Category = Category.ORGANIZATION_UPDATE, *, alias: str = US) -> list[int]:
    """Return the objects of a cell's messages, in the order of their ids."""
    rows = CellOutbox.objects.using(alias).filter(category=category).order_by("id")
    return list(rows.values_list("object_identifier", flat=True))


def written_in_control(category: Category) -> list[tuple[int, str]]:
    """Return object and target cell of control's messages, in the order of their ids."""
    rows = ControlOutbox.objects.using(CONTROL).filter(category=category).order_by("id")
    return list(rows.values_list("object_identifier", "cell_name"))


def walk(size: int = 2, *, most: int = 1000, model: Any = Organization) -> list[BackfillBatch]:
    """Walk a model batch by batch, whatever the options say, until there is nothing to do."""
    batches: list[BackfillBatch] = []
    for _ in range(most):
        batch = process_outbox_backfill_batch(model, size, force_synchronous=True)
        if batch is None:
            return batches
        batches.append(batch)
    raise AssertionError("the walk does not end")


def state(table: str = ORGANIZATIONS) -> tuple[int, int]:
    """Return the position that the database has, without touching redis."""
    alias = CONTROL if table in ("acme_user", "acme_apitoken", "acme_authprovider") else US
    found = cursors.read(alias, table)
    return found.low_bound, found.version


def shown(table: str = ORGANIZATIONS) -> Any:
    """Return the position that redis shows."""
    client = redis_client()
    assert client is not None
    value = client.get(f"outbox_backfill.{table}")
    return None if value is None else json.loads(str(value))


def put_in_redis(value: str | None, table: str = ORGANIZATIONS) -> None:
    """Let redis show something, or nothing."""
    client = redis_client()
    assert client is not None
    if value is None:
        client.delete(f"outbox_backfill.{table}")
    else:
        client.set(f"outbox_backfill.{table}", value)


def other_session() -> psycopg.Connection:
    """Open a second session of the us cell's database."""
    params = connections[US].get_connection_params()
    names = ("dbname", "host", "port", "user", "password")
    return psycopg.connect(**{name: params[name] for name in names if params.get(name)})
