"""An upgrade replicates and drains every silo, and says whether it is caught up."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from fixtures.acme.categories import Category
from fixtures.acme.models import ApiTokenReplica, Organization, OrganizationMapping
from hybridcloud.backfill import process_outbox_backfill_batch
from hybridcloud.backfill.upgrade import catch_up, post_upgrade
from hybridcloud.outbox import CellOutbox
from hybridcloud.testutils import override_options
from silos import SiloMode, assume_silo

from .filling import US, execute, fill_organizations, fill_tokens, other_session, state, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

pytestmark = pytest.mark.django_db


def _upgrade(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("hybridcloud_upgrade", *arguments, stdout=out)
    except CommandError as exc:
        return exc.returncode, f"{out.getvalue()}{exc}"
    return 0, out.getvalue()


def _mapped() -> list[int]:
    with assume_silo(SiloMode.CONTROL):
        rows = OrganizationMapping.objects.order_by("organization_id")
        return list(rows.values_list("organization_id", flat=True))


def test_every_silo_is_replicated_and_drained_whatever_the_options_say() -> None:
    fill_organizations([1, 2])
    fill_organizations([3], alias="cell_eu")
    fill_tokens([9])
    with override_options({"hybridcloud.backfill.paused": True}):
        summaries = catch_up()
    assert {each.silo: each.is_caught_up for each in summaries} == {
        "control": True,
        "us": True,
        "eu": True,
    }
    assert {each.silo: each.rows for each in summaries} == {"control": 2, "us": 2, "eu": 1}
    assert _mapped() == [1, 2, 3]
    for cell in ("us", "eu"):
        with assume_silo(SiloMode.CELL, cell=cell):
            assert list(ApiTokenReplica.objects.values_list("api_token_id", flat=True)) == [9]


def test_it_goes_to_the_codes_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Organization, "replication_version", 4)
    fill_organizations([1])
    catch_up()
    assert state() == (0, 5)


def test_again_it_finds_nothing_to_do() -> None:
    fill_organizations([1, 2])
    catch_up()
    assert [(each.rows, each.messages) for each in catch_up()] == [(0, 0)] * 3


def test_interrupted_it_goes_on_where_it_was() -> None:
    fill_organizations([1, 2, 3])
    process_outbox_backfill_batch(Organization, 2, force_synchronous=True)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catch_up(say=interrupt)
    assert written() == [1, 2, 3]
    catch_up()
    assert _mapped() == [1, 2, 3]


def test_the_signal_alone_is_enough() -> None:
    fill_organizations([1])
    post_upgrade.send(sender=None)
    assert _mapped() == [1]


def test_the_command_says_who_is_caught_up_and_ends_well() -> None:
    fill_organizations([1, 2])
    status, text = _upgrade("--skip-migrate")
    assert status == 0
    assert "us: caught up, 2 rows replicated, 2 messages" in text


def test_the_command_migrates_first() -> None:
    fill_organizations([1])
    status, text = _upgrade("--no-input")
    assert status == 0
    assert "No migrations to apply." in text
    assert _mapped() == [1]


def test_what_still_waits_is_named_and_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Organization, shard_identifier: int) -> None:
        raise ConnectionError("control is down")

    fill_organizations([1])
    monkeypatch.setattr(Organization, "handle_async_replication", fails)
    status, text = _upgrade("--skip-migrate")
    assert status == 3
    assert "us: not caught up, 1 rows replicated, 1 messages" in text
    assert "1 in the outbox" in text
    assert "1 failures" in text
    assert "Not caught up: us. Fix what the summary names and run it again" in text


def test_dead_letters_are_named_and_wait_for_people_not_for_the_upgrade() -> None:
    execute(
        "INSERT INTO hybridcloud_cellparked (shard_scope, shard_identifier, category, object_identifier,"
        " scheduled_from, scheduled_for, reason) VALUES (0, 1, 2, 1, now(), now(), 'dead')"
    )
    status, text = _upgrade("--skip-migrate")
    assert status == 0
    assert "1 dead letters" in text


def test_json_is_one_document_and_nothing_else() -> None:
    fill_organizations([1])
    status, text = _upgrade("--skip-migrate", "--json")
    document = json.loads(text)
    assert status == 0
    assert document["version"] == 1
    assert [(each["silo"], each["caught_up"]) for each in document["silos"]] == [
        ("control", True),
        ("us", True),
        ("eu", True),
    ]


def test_a_plan_changes_nothing_and_a_check_says_by_its_status_whether_there_is_any() -> None:
    fill_organizations([1])
    status, text = _upgrade("--plan")
    assert status == 0
    assert "backfill us: acme.Organization to version 1" in text
    assert _upgrade("--check")[0] == 3
    assert written() == []
    catch_up()
    assert _upgrade("--check")[0] == 0


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "hybridcloud.management.commands.hybridcloud_upgrade.post_upgrade.send", interrupt
    )
    status, text = _upgrade("--skip-migrate")
    assert status == 130
    assert "Run it again to continue" in text


def test_a_model_that_cannot_be_walked_is_named_and_counts_only_if_it_asks_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Organization._meta, "pk", Organization._meta.get_field("slug"))
    status, text = _upgrade("--skip-migrate")
    assert status == 0
    assert "No integer primary key: acme.Organization.slug" in text
    monkeypatch.setattr(Organization, "replication_version", 2)
    assert _upgrade("--skip-migrate")[0] == 3


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    """Return a second session of the us cell's database."""
    with other_session() as connection:
        yield connection
        connection.rollback()


@pytest.mark.usefixtures("committed")
def test_a_writer_who_does_not_end_is_named_after_a_while(other: psycopg.Connection) -> None:
    other.execute("INSERT INTO acme_organization (id, name, slug) VALUES (5, 'o', 'o5')")
    summary = next(each for each in catch_up(fence_wait_s=0.2) if each.silo == "us")
    assert not summary.is_caught_up
    assert summary.unfinished[0].startswith("acme.Organization: 1 transactions that write")
    other.commit()
    assert all(each.is_caught_up for each in catch_up())
    assert _mapped() == [5]
    assert CellOutbox.objects.using(US).filter(category=Category.ORGANIZATION_UPDATE).count() == 0
