"""Kicks are throttled, and none is lost."""

from __future__ import annotations

import threading
from time import monotonic

from hybridcloud.outbox.deliver.kick import Throttle


def test_the_first_kick_goes_at_once_and_the_last_is_not_lost() -> None:
    sent: list[float] = []
    first, second = threading.Event(), threading.Event()

    def send(_: str) -> None:
        sent.append(monotonic())
        first.set()
        if len(sent) == 2:
            second.set()

    throttle = Throttle(send, every=0.1)
    throttle("us")
    assert first.is_set(), "it is called before the caller goes on"
    for _ in range(1000):
        throttle("us")
    assert second.wait(5)
    assert sent[1] - sent[0] >= 0.09


def test_thousands_of_commits_wake_a_drainer_tens_of_times() -> None:
    sent: list[str] = []
    throttle = Throttle(sent.append, every=0.05)
    began = monotonic()
    asked = 0
    while asked < 1000 or len(sent) < 8:
        throttle("us")
        asked += 1
    assert len(sent) <= (monotonic() - began) / 0.05 + 2


def test_one_table_does_not_wait_for_another() -> None:
    sent: list[str] = []
    throttle = Throttle(sent.append, every=10)
    throttle("us")
    throttle("eu")
    throttle("us")
    assert sent == ["us", "eu"]


def test_a_forked_child_is_not_held_by_a_timer_of_its_parent() -> None:
    sent: list[str] = []
    throttle = Throttle(sent.append, every=10)
    throttle("us")
    throttle("us")
    throttle._pid = -1
    throttle._sent.clear()
    throttle("us")
    assert sent == ["us", "us"]
