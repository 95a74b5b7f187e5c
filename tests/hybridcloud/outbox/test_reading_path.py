"""The reading order of CONTRIBUTING is the way that a message takes.

A save and a sweep are traced. They may enter the files of the reading order and, beside these, what
is named below with the reason why a newcomer can leave it out.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from fixtures.acme.models import OrganizationMember, Project
from hybridcloud.outbox import CellOutbox, ControlOutbox, process_control_outbox
from hybridcloud.outbox.drain.loop import Drainer
from silos import SiloMode, assume_silo

from .conftest import ALIASES
from .engine import US, Kind, Recorder, listening, put
from .test_targets import CONTROL, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from fixtures.acme.models import Organization
    from hybridcloud.outbox import ReplicatedCellModel

ROOT = Path(__file__).parents[3]
OURS = tuple(f"{ROOT / folder}/" for folder in ("silos", "hybridcloud", "receivers"))
OUTBOX: Final = "hybridcloud/outbox/"

MOST_MODULES_OF_A_SAVE: Final = 12
MOST_MODULES_OF_A_SWEEP: Final = 15
MOST_CALLS_OF_A_SWEEP: Final = 500

BESIDE_A_SAVE: Final = {
    "declare/category.py": "which scope the category belongs to",
    "declare/cell_mapping.py": "quotes the names of tables",
    "declare/identifiers.py": "the shard and the object of a row",
    "declare/validation.py": "the registry of categories and scopes",
    "deliver/flush.py": "what happens after the commit: nothing here",
    "store/session.py": "the engine's own cursor, which wrappers do not see",
    "store/tables.py": "the columns of a message",
    "write/after_commit.py": "one hook for each transaction",
    "write/buffer.py": "collects the messages of a block",
    "write/insert.py": "the INSERT",
    "write/messages.py": "makes the messages from the row",
    "write/one_statement.py": "whether row and message can be one statement",
    "write/sink.py": "has the row's statement write the message",
}
BESIDE_A_SWEEP: Final = {
    "declare/category.py": "the category of a number",
    "declare/validation.py": "the registry of categories and scopes",
    "drain/ahead.py": "the optional way by ids: measures whether it is needed",
    "drain/boundary.py": "notices a transaction that a handler left open",
    "drain/call.py": "sends the signal",
    "drain/coalesce.py": "groups messages, without a database",
    "drain/due.py": "which shards are due, and where the last sweep ended",
    "drain/gate.py": "may this message run now?",
    "drain/parked.py": "looks whether something parked may come back",
    "drain/read.py": "reads the messages of claimed shards",
    "drain/shard.py": "a claimed shard and what is known of it",
    "store/key.py": "the key of a shard",
    "store/session.py": "runs a statement with its plan pinned",
    "store/switches.py": "the kill switches",
    "store/tables.py": "the names of the tables",
    "store/templates.py": "the text of a statement",
}


class Trace:
    """How often functions of each of our modules were called, by the module's path."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    @property
    def outbox(self) -> set[str]:
        """The modules of the engine that were entered, as paths inside its folder."""
        return {name.removeprefix(OUTBOX) for name in self.calls if name.startswith(OUTBOX)}

    def __str__(self) -> str:
        lines = (f"{count:5} {name}" for name, count in sorted(self.calls.items()))
        total = f"{len(self.outbox)} modules of {OUTBOX}, {self.calls.total()} calls in all:"
        return "\n".join((total, *lines))


@contextmanager
def traced() -> Iterator[Trace]:
    """Count what this thread calls inside the block."""
    trace = Trace()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(OURS):
            trace.calls[name[len(str(ROOT)) + 1 :]] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield trace
    finally:
        sys.setprofile(before)


def reading_order() -> list[str]:
    """Return the files that CONTRIBUTING names, as paths inside the engine's folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Reading order")[2].partition("\n## ")[0]
    return re.findall(rf"^\d+\. `{OUTBOX}([\w/]+\.py)`", section, re.MULTILINE)


def a_member(org: Organization, number: int) -> OrganizationMember:
    return OrganizationMember(organization=org, user_id=1000 + number)


def a_project(org: Organization, number: int) -> Project:
    return Project(organization=org, name="A", slug=str(number))


@pytest.fixture(params=[a_member, a_project], ids=["in one statement", "with a payload"])
def save(
    request: pytest.FixtureRequest, transactional_db: None, unflushed_us: None, org: Organization
) -> Trace:
    """Trace one save of a replicated model, which is not flushed."""
    make: Callable[[Organization, int], ReplicatedCellModel] = request.param
    for number in range(2):
        # What is imported or remembered at the first use is no part of the way.
        make(org, number).save()
    row = make(org, 2)
    with traced() as trace:
        row.save()
    assert trace.outbox, "nothing was traced"
    return trace


def sweep_of_a_cell() -> Trace:
    with listening(Kind.PLAIN) as heard, assume_silo(SiloMode.CELL, cell="us"):
        for _ in range(2):
            put()
            Drainer(CellOutbox, US).sweep()
        put()
        with traced() as trace:
            Drainer(CellOutbox, US).sweep()
    assert len(heard.calls) == 3
    return trace


def sweep_of_control() -> Trace:
    heard = Recorder()
    process_control_outbox.connect(heard, sender=Kind.PLAIN, weak=False)
    try:
        with assume_silo(SiloMode.CONTROL):
            for _ in range(2):
                send("us")
                Drainer(ControlOutbox, CONTROL).sweep()
            send("us")
            with traced() as trace:
                Drainer(ControlOutbox, CONTROL).sweep()
    finally:
        process_control_outbox.disconnect(heard, sender=Kind.PLAIN)
    assert len(heard.calls) == 3
    return trace


@pytest.fixture(params=[sweep_of_a_cell, sweep_of_control], ids=["of a cell", "of control"])
def sweep(request: pytest.FixtureRequest, committed: None) -> Trace:
    """Trace one sweep that handles one message."""
    run: Callable[[], Trace] = request.param
    return run()


def test_the_reading_order_is_eight_files_and_none_of_them_is_left_out_below() -> None:
    order = reading_order()
    assert len(order) == 8
    assert [name for name in order if not (ROOT / OUTBOX / name).is_file()] == []
    assert not {*BESIDE_A_SAVE, *BESIDE_A_SWEEP}.intersection(order)


class TestSave:
    pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

    def test_it_enters_what_the_reading_order_names_and_little_more(self, save: Trace) -> None:
        beyond = sorted(save.outbox.difference(reading_order(), BESIDE_A_SAVE))
        assert beyond == [], f"named neither in CONTRIBUTING nor above. {save}"

    def test_it_enters_few_modules(self, save: Trace) -> None:
        entered = len(save.outbox)
        assert entered <= MOST_MODULES_OF_A_SAVE, str(save)


class TestSweep:
    def test_it_enters_what_the_reading_order_names_and_little_more(self, sweep: Trace) -> None:
        beyond = sorted(sweep.outbox.difference(reading_order(), BESIDE_A_SWEEP))
        assert beyond == [], f"named neither in CONTRIBUTING nor above. {sweep}"

    def test_it_enters_few_modules(self, sweep: Trace) -> None:
        entered = len(sweep.outbox)
        assert entered <= MOST_MODULES_OF_A_SWEEP, str(sweep)

    def test_it_makes_few_calls(self, sweep: Trace) -> None:
        made = sweep.calls.total()
        assert made <= MOST_CALLS_OF_A_SWEEP, str(sweep)
