"""Everything goes on without Redis and without a broker.

The kinds of Redis: refused, an unknown host, one that never answers, one that answers nonsense, a
wrong password, a value that is not text, one that refuses writes.
"""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.exceptions import OperationalError
from django.db import transaction

import hybridcloud
from hybridcloud import logs, options
from hybridcloud import redis as shared
from hybridcloud.checks.celery import check_broker
from hybridcloud.outbox import CellOutbox, outbox_context
from hybridcloud.outbox.deliver import broker, tasks
from hybridcloud.redis import SharedRedis, redis_client, shared_redis
from hybridcloud.tombstones.watermark import CascadeWatermark
from silos import SiloMode, assume_silo

from .engine import US, Kind, ids, listening, message, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.usefixtures("committed")


class Server(threading.Thread):
    """Listens on a port of its own, and answers every request with the same bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        super().__init__(daemon=True)
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.asked = 0
        self._held: list[socket.socket] = []

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self._held.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while connection.recv(65536):
                self.asked += 1
                if self.answer is not None:
                    connection.sendall(self.answer)
        except OSError:
            return

    def close(self) -> None:
        self.socket.close()
        for each in self._held:
            each.close()


ANSWERS = {
    "never answers": None,
    "answers nonsense": b"\xff\xfe garbage\r\n",
    "refuses the password": b"-WRONGPASS invalid username-password pair\r\n" * 4,
    "is read-only": b"-READONLY You can't write against a read only replica.\r\n",
    "is full": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "is loading": b"-LOADING Redis is loading the dataset in memory\r\n",
}
URLS = {
    "refused": "redis://127.0.0.1:1/0",
    "an unknown host": "redis://nowhere.invalid:6379/0",
    "no address": "nonsense://x",
}


@pytest.fixture(params=[*ANSWERS, *URLS])
def url(request: pytest.FixtureRequest, settings: SettingsWrapper) -> Iterator[str]:
    if request.param in URLS:
        made, server = URLS[request.param], None
    else:
        server = Server(ANSWERS[request.param])
        server.start()
        made = f"redis://127.0.0.1:{server.port}/0"
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": made}
    logs.forget_limits()
    broker.forget()
    shared._shared.cache_clear()
    yield made
    shared._shared.cache_clear()
    if server is not None:
        server.close()


@pytest.mark.usefixtures("url")
def test_no_call_raises_and_only_the_first_takes_its_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    redis = shared_redis()
    assert redis is not None
    assert redis.get("a") is None
    begun = monotonic()
    for _ in range(20):
        assert redis.get("a", missing="x") is None
        assert redis.put("a", "b", seconds=5, only_new=True) is None
        redis.remove("a")
    assert monotonic() - begun < 0.1
    said = [each for each in caplog.records if each.name == "hybridcloud.redis"]
    assert len(said) == 1


def test_no_password_is_logged(settings: SettingsWrapper, caplog: pytest.LogCaptureFixture) -> None:
    url = "redis://someone:hunter2@127.0.0.1:1/0"
    settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "REDIS_URL": url}
    redis = shared_redis()
    assert redis is not None
    assert redis.get("a") is None
    assert "Redis is left out" in caplog.text
    assert "hunter2" not in caplog.text


def test_each_task_and_use_goes_on(url: str) -> None:
    put(Kind.OTHER, obj=7)
    with listening(Kind.OTHER) as seen:
        tasks.drain_outbox_shards(cell="us")
        tasks.drain_outbox_shards_control()
    assert (seen.objects, ids()) == ([7], [])
    with assume_silo(SiloMode.CELL, cell="us"):
        options.set("hybridcloud.backfill.paused", True)
        assert options.get("hybridcloud.backfill.paused") is True
        options.delete("hybridcloud.backfill.paused")
        CascadeWatermark(walk="row", table="t", field="f").show()


def test_a_kick_goes_out_without_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(broker, "may_send", lambda _: True)
    monkeypatch.setattr(
        tasks.drain_outbox_shards, "apply_async", lambda **more: sent.append(more["queue"])
    )
    with assume_silo(SiloMode.CELL, cell="us"):
        tasks.send_kick(CellOutbox, US)
    assert sent == ["hybridcloud.cell.us"]


def test_a_value_that_is_not_text_is_no_value_and_mutes_nothing() -> None:
    client = redis_client()
    assert client is not None
    client.execute_command("SET", "not-text", b"\xff\xfe")
    client.set("text", "x")
    redis = shared_redis()
    assert redis is not None
    assert redis.get("not-text", missing="none") == "none"
    assert redis.get("text") == "x"
    assert redis.put("text", "y", only_new=True) is False
    redis.remove("text")
    assert redis.put("text", "y", only_new=True, seconds=5) is True


def test_it_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ConnectionError("down"), "x"]

    class Client:
        def get(self, _: str) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    now = [100.0]
    monkeypatch.setattr(shared, "monotonic", lambda: now[0])
    redis = SharedRedis(Client)  # type: ignore[arg-type,return-value]
    assert redis.get("a") is None
    now[0] += shared.MUTE - 0.1
    assert redis.get("a") is None
    now[0] += 0.2
    assert redis.get("a") == "x"


def test_nothing_uses_redis_beside_the_guarded_client() -> None:
    root = Path(hybridcloud.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path != root / "redis.py":
            assert "redis_client(" not in text, path
            assert "import redis" not in text, path
            assert "from redis" not in text, path


class TestBroker:
    """A broker that cannot be reached costs a save next to nothing."""

    @pytest.fixture(autouse=True)
    def _anew(self, settings: SettingsWrapper) -> Iterator[None]:
        settings.HYBRIDCLOUD = {**settings.HYBRIDCLOUD, "FLUSH": "kick", "REDIS_URL": None}
        logs.forget_limits()
        broker.forget()
        yield
        broker.forget()

    def test_a_save_that_kicks_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broker, "_try", lambda _: OSError("refused"))
        with outbox_context(transaction.atomic(using=US), flush=True):
            message(obj=1).save(using=US)
        assert len(ids()) == 1

    @pytest.mark.parametrize("kind", ["refused", "never answers"])
    def test_it_costs_one_save_a_third_of_a_second(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as full:
            # A queue of connections that is full does not answer another one.
            waiting = [socket.socket() for _ in range(3)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            port = 1 if kind == "refused" else full.getsockname()[1]
            app = Celery("test", broker=f"amqp://127.0.0.1:{port}//", set_as_current=False)
            begun = monotonic()
            broker.may_send(app)
            assert monotonic() - begun < 0.5
            begun = monotonic()
            for _ in range(50):
                broker.may_send(app)
            assert monotonic() - begun < 0.1
            for each in waiting:
                each.close()
        if kind == "refused":
            said = [each for each in caplog.records if "No kicks for" in each.message]
            assert len(said) == 1

    def test_it_is_tried_again_after_a_while_and_not_believed_before(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, tried = [100.0], []
        answers: list[object | None] = [OSError("refused"), OSError("refused"), None, OSError("x")]

        def attempt(_: object) -> object | None:
            tried.append(now[0])
            return answers[len(tried) - 1]

        monkeypatch.setattr(broker, "monotonic", lambda: now[0])
        monkeypatch.setattr(broker, "_try", attempt)
        app = Celery("test", set_as_current=False)
        found = []
        for _ in range(8):
            found.append(broker.may_send(app))
            now[0] += 6.0
        # Tried at 0, 12, 24 (reached), 36 (lost), and not in between.
        assert tried == [100.0, 112.0, 124.0, 136.0]
        assert found == [False, False, False, False, True, True, False, False]

    def test_a_send_that_fails_mutes_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []

        def fails(**_: Any) -> None:
            sent.append(1)
            raise OperationalError("gone")

        monkeypatch.setattr(broker, "_try", lambda _: None)
        monkeypatch.setattr(tasks.drain_outbox_shards, "apply_async", fails)
        with assume_silo(SiloMode.CELL, cell="us"):
            for _ in range(5):
                tasks.send_kick(CellOutbox, US)
        assert sent == [1]

    def test_one_in_memory_is_not_tried(self) -> None:
        assert broker.may_send(Celery("test", broker="memory://", set_as_current=False))

    def test_a_check_names_the_missing_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hybridcloud.checks import celery as checks

        for url, wanted in ((None, ["hybridcloud.W023"]), ("memory://", [])):
            app = Celery("test", set_as_current=False)
            app.conf.broker_url = url
            monkeypatch.setattr(checks, "_app", lambda app=app: app)
            assert [each.id for each in check_broker()] == wanted
