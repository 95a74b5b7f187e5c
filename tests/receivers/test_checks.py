"""Mistakes in who hears what are found at start; without it they would show as parked messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks

from fixtures.acme.categories import Category
from hybridcloud.outbox import (
    OutboxCategory,
    OutboxScope,
    process_cell_outbox,
    process_control_outbox,
    scope_categories,
)
from hybridcloud.outbox.declare.category import restored_declarations
from receivers.checks import check_every_category_is_heard, check_single_owner

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def declarations() -> Iterator[None]:
    with restored_declarations():
        yield


def listen(**_: Any) -> None:
    """Hear a message."""


def test_acme_has_no_findings() -> None:
    assert check_single_owner() == []
    heard_by_nobody = {message.obj for message in check_every_category_is_heard()}
    assert heard_by_nobody.isdisjoint(Category)


def test_both_are_run_by_manage_py_check() -> None:
    process_control_outbox.connect(listen, sender=Category.USER_UPDATE)
    try:
        found = run_checks(tags=["hybridcloud"])
    finally:
        process_control_outbox.disconnect(listen, sender=Category.USER_UPDATE)
    assert "hybridcloud_receivers.E001" in {message.id for message in found}


def test_a_second_receiver_of_a_replicated_models_category_is_an_error() -> None:
    process_cell_outbox.connect(listen, sender=Category.ORGANIZATION_UPDATE)
    try:
        (found,) = check_single_owner()
    finally:
        process_cell_outbox.disconnect(listen, sender=Category.ORGANIZATION_UPDATE)
    assert found.id == "hybridcloud_receivers.E001"
    assert found.msg == (
        "Two receivers of ORGANIZATION_UPDATE: the handlers of acme.Organization, and "
        f"{__name__}.listen."
    )


def test_who_hears_all_categories_owns_none() -> None:
    process_cell_outbox.connect(listen)
    try:
        assert check_single_owner() == []
    finally:
        process_cell_outbox.disconnect(listen)


@pytest.mark.usefixtures("declarations")
def test_a_category_that_nobody_hears_is_a_warning_unless_it_is_retired() -> None:
    class Sound(OutboxCategory):
        HEARD = 9901
        UNHEARD = 9902
        RETIRED = 9903

    class Hall(OutboxScope, categories=Sound):
        MAIN = scope_categories(9901, {Sound.HEARD, Sound.UNHEARD}, retired={Sound.RETIRED})

    process_control_outbox.connect(listen, sender=Sound.HEARD)
    try:
        found = [each for each in check_every_category_is_heard() if each.obj in {*Sound}]
    finally:
        process_control_outbox.disconnect(listen, sender=Sound.HEARD)
    assert [(each.id, each.obj, each.is_serious()) for each in found] == [
        ("hybridcloud_receivers.W002", Sound.UNHEARD, False)
    ]
    assert found[0].msg == "No receiver of Sound.UNHEARD: its messages are parked."
