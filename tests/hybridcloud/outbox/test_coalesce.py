"""Groups of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridcloud.outbox.drain.coalesce import Group, Message, group_messages

NOW = "2026-01-01 00:00:00+00"


def make(message_id: int, category: int, obj: int) -> Message:
    return Message(
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


def group(rows: list[Message], *, coalesce: bool) -> list[Group]:
    newest, larger = group_messages(rows, coalesce=coalesce)
    return [larger.get(each.id) or Group.of(each) for each in newest]


messages = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(0, 3), st.integers(0, 4)),
    unique_by=lambda each: each[0],
).map(lambda rows: [make(*row) for row in sorted(rows)])


@given(messages)
def test_every_message_is_captured_exactly_once(rows: list[Message]) -> None:
    for coalesce in (True, False):
        groups = group(rows, coalesce=coalesce)
        captured = [each for one in groups for each in one.ids]
        assert sorted(captured) == sorted(row.id for row in rows)


@given(messages)
def test_the_newest_of_an_object_is_handled_and_it_alone(rows: list[Message]) -> None:
    groups = group(rows, coalesce=True)
    keys = [(each.newest.category, each.newest.object_identifier) for each in groups]
    assert len(keys) == len(set(keys))
    for key, each in zip(keys, groups, strict=True):
        same = [row.id for row in rows if (row.category, row.object_identifier) == key]
        assert each.newest.id == max(same)
        assert each.ids == same


@given(messages)
def test_groups_come_in_the_order_of_their_oldest_message(rows: list[Message]) -> None:
    for coalesce in (True, False):
        firsts = [each.ids[0] for each in group(rows, coalesce=coalesce)]
        assert firsts == sorted(firsts)


def test_messages_of_scopes_that_do_not_coalesce_stay_single() -> None:
    rows = [make(1, 0, 0), make(2, 0, 0)]
    assert [each.ids for each in group(rows, coalesce=False)] == [[1], [2]]


def test_the_age_of_a_group_is_that_of_its_oldest_message() -> None:
    (only,) = group([make(3, 0, 0), make(7, 0, 0)], coalesce=True)
    assert only.age == -3.0
