"""Groups of messages."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from hybridcloud.outbox.coalesce import CATEGORY, ID, OBJECT, Message, group_messages

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make(message_id: int, category: int, obj: int) -> Message:
    return (
        1,
        message_id,
        category,
        obj,
        str(message_id),
        NOW,
        NOW,
        None,
        float(-message_id),
        False,
    )


messages = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(0, 3), st.integers(0, 4)),
    unique_by=lambda each: each[0],
).map(lambda rows: [make(*row) for row in rows])


@given(messages)
def test_every_message_is_captured_exactly_once(rows: list[Message]) -> None:
    for coalesce in (True, False):
        groups = group_messages(rows, coalesce=coalesce)
        captured = [each for group in groups for each in group.ids]
        assert sorted(captured) == sorted(row[ID] for row in rows)


@given(messages)
def test_the_newest_of_an_object_is_handled_and_it_alone(rows: list[Message]) -> None:
    groups = group_messages(rows, coalesce=True)
    keys = [(group.newest[CATEGORY], group.newest[OBJECT]) for group in groups]
    assert len(keys) == len(set(keys))
    for group in groups:
        same = [
            row[ID]
            for row in rows
            if (row[CATEGORY], row[OBJECT]) == (group.newest[CATEGORY], group.newest[OBJECT])
        ]
        assert group.newest[ID] == max(same)
        assert group.ids == sorted(same)


@given(messages)
def test_groups_come_in_the_order_of_their_oldest_message(rows: list[Message]) -> None:
    for coalesce in (True, False):
        firsts = [group.ids[0] for group in group_messages(rows, coalesce=coalesce)]
        assert firsts == sorted(firsts)


def test_messages_of_scopes_that_do_not_coalesce_stay_single() -> None:
    rows = [make(2, 0, 0), make(1, 0, 0)]
    assert [group.ids for group in group_messages(rows, coalesce=False)] == [[1], [2]]


def test_the_age_of_a_group_is_that_of_its_oldest_message() -> None:
    (group,) = group_messages([make(7, 0, 0), make(3, 0, 0)], coalesce=True)
    assert group.age == -3.0
