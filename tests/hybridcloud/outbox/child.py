"""A drainer to be killed: without it a SIGKILL would have to be played, and nothing would be proven."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import django


def say(word: str, *more: Any) -> None:
    """Tell the test where this process is."""
    print(word, *more, flush=True)  # noqa: T201 - the protocol of the test


def wait() -> None:
    """Stand still until the test says go."""
    sys.stdin.readline()


def listen() -> None:
    """Run the drainer command, and say when the first signal was heeded."""
    from django.core.management import call_command

    from hybridcloud.outbox.deliver.listener import ListeningDrainer

    stop = ListeningDrainer.stop

    def told(self: ListeningDrainer) -> None:
        stop(self)
        say("asked")

    ListeningDrainer.stop = told  # type: ignore[method-assign]
    call_command("hybridcloud_drainer", verbosity=0)


def main() -> None:
    """Drain the us cell once, or listen, stopping at the step that the arguments name."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fixtures.settings.test")
    django.setup()
    arguments = json.loads(sys.argv[2])

    from hybridcloud import hooks
    from tests.hybridcloud.outbox import engine

    stop_at, stop_object = arguments.get("stop_at"), arguments.get("object")

    class Stopper(hooks.Hooks):
        def before_handler(self, call: hooks.HandlerCall) -> None:
            say("calling", call.object_identifier)

        def after_handler(self, call: hooks.HandlerCall) -> None:
            if stop_at == "after_handler" and stop_object in (None, call.object_identifier):
                say("stopped", call.object_identifier)
                wait()

        def before_ack(self, ids: Any) -> None:
            if stop_at == "before_ack" and ids:
                say("stopped", *ids)
                wait()

    def act(*, object_identifier: int, **_: Any) -> None:
        say("handling", object_identifier)
        if stop_at == "handler" and stop_object in (None, object_identifier):
            say("stopped", object_identifier)
            wait()

    hooks.install(Stopper())
    kinds = [engine.Kind[name] for name in arguments.get("kinds", ["PLAIN"])]
    with engine.listening(*kinds, act=act):
        say("ready")
        if sys.argv[1] == "listen":
            listen()
        else:
            engine.drain_us()
    say("done")


if __name__ == "__main__":
    main()
