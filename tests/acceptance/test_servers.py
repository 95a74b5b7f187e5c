"""The launcher of the local servers, with real servers, as the user that runs the suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import psutil
import psycopg
import pytest
import redis

from fixtures.servers import SILOS, ServerError, Servers, launch, start, url_variable

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

_PATIENCE_S = 30
_VARIABLES = (*(url_variable(alias) for alias in SILOS), "REDIS_URL")


@pytest.fixture(autouse=True)
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Give no servers, and a folder for temporary files of which nobody else makes use."""
    # Made at first use, and to last longer than this fixture's folder.
    tmp_path_factory.getbasetemp()
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory() as folder:
        # Open to the servers' user, unlike the folders of pytest.
        Path(folder).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with start(durable=False) as running:
        yield running


def _cli(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fixtures.servers", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def _ask(url: str, sql: LiteralString) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def _wait_gone(pids: list[int]) -> None:
    alive: list[psutil.Process] = []
    for pid in pids:
        # One may be gone already, or go between any look and the next.
        with suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    assert not psutil.wait_procs(alive, timeout=_PATIENCE_S)[1]


class TestStart:
    def test_every_silo_has_a_database_of_its_own(self, servers: Servers) -> None:
        names = {_ask(url, "SELECT current_database()") for url in servers.databases.values()}
        assert names == set(SILOS)

    def test_redis_answers(self, servers: Servers) -> None:
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()

    def test_neither_lets_in_who_has_no_password(self, servers: Servers) -> None:
        url = servers.postgres_url
        stranger = url[: url.index(":", url.index("//"))] + url[url.index("@") :]
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(stranger)
        address = "redis://" + servers.redis_url.partition("@")[2]
        with redis.Redis.from_url(address) as client, pytest.raises(redis.AuthenticationError):
            client.ping()

    def test_two_starts_do_not_meet(self, servers: Servers) -> None:
        with start(durable=False) as others:
            folders = {_ask(one.postgres_url, "SHOW data_directory") for one in (servers, others)}
            assert len(folders) == 2

    def test_nothing_stays_behind(self, temporary: Path) -> None:
        servers = start(durable=False)
        assert list(temporary.iterdir())
        servers.stop()
        servers.stop()
        _wait_gone(list(servers.pids.values()))
        assert not list(temporary.iterdir())

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to run servers as")
    def test_root_runs_the_servers_as_another_user(self, servers: Servers) -> None:
        assert all(psutil.Process(pid).uids().real != 0 for pid in servers.pids.values())


class TestKeptData:
    @pytest.mark.parametrize("durable", [True, False])
    def test_survive_a_stop_in_a_path_with_a_space(self, temporary: Path, *, durable: bool) -> None:
        folder = temporary / "a folder with spaces"
        with start(folder, durable=durable) as servers:
            _ask(servers.databases["cell_eu"], "CREATE TABLE kept AS SELECT 7 AS number")
        with start(folder, durable=durable) as servers:
            assert _ask(servers.databases["cell_eu"], "SELECT number FROM kept") == 7

    def test_a_second_start_in_the_same_folder_is_refused(self, temporary: Path) -> None:
        with (
            start(temporary / "run", durable=False),
            pytest.raises(ServerError, match=r"^Servers already run from"),
        ):
            start(temporary / "run", durable=False)

    @pytest.mark.skipif(os.geteuid() != 0, reason="for others than root no way is closed")
    def test_stay_elsewhere_where_the_servers_user_cannot_go(self, temporary: Path) -> None:
        closed = temporary / "closed"
        closed.mkdir(mode=0o700)
        for _ in range(2):
            with start(closed / "run", durable=False) as servers:
                place = Path((closed / "run/postgres/location").read_text())
                assert _ask(servers.postgres_url, "SHOW data_directory") == str(place / "data")

    @pytest.mark.skipif(os.geteuid() != 0, reason="for others than root no way is closed")
    def test_programs_are_copied_where_the_servers_user_cannot_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o700)
        found = launch.find_redis()
        closed = found.copied_to(tmp_path)
        monkeypatch.setattr(launch, "find_redis", lambda: closed)
        with start(durable=False) as servers:
            program = Path(psutil.Process(servers.pids["redis"]).exe())
            assert program.name == closed.path.name
            assert tmp_path not in program.parents


class TestGivenServers:
    def test_are_used_and_nothing_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in _VARIABLES:
            monkeypatch.setenv(name, f"given://{name}")
        with start() as servers:
            assert servers.pids == {}
            assert servers.environment() == {name: f"given://{name}" for name in _VARIABLES}

    def test_must_be_one_for_each_silo(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATABASE_URL_CONTROL", "postgresql://somewhere/control")
        with pytest.raises(ServerError, match=r"^DATABASE_URL_CELL_US is not set"):
            start()


class TestRun:
    def test_gives_the_command_its_servers_and_takes_its_status(self) -> None:
        show = "import os; print(*sorted(k for k in os.environ if 'URL' in k)); raise SystemExit(3)"
        process = _cli("--", sys.executable, "-c", show)
        output, errors = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 3, errors
        assert set(_VARIABLES) <= set(output.split())

    def test_passes_a_signal_on(self) -> None:
        process = _cli("--", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do wait; done")
        self._wait_line(process)
        process.terminate()
        assert process.wait(_PATIENCE_S) == 5
        process.communicate()

    def test_says_how_a_command_was_killed(self) -> None:
        process = _cli("--", "sh", "-c", "kill -9 $$")
        process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 128 + signal.SIGKILL

    def test_nothing_survives_a_launcher_that_was_killed(self, temporary: Path) -> None:
        process = _cli("--", "sh", "-c", "echo ready; exec sleep 600")
        self._wait_line(process)
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 3
        process.kill()
        process.communicate()
        _wait_gone(family)
        start(durable=False).stop()
        assert not list(temporary.iterdir())

    @staticmethod
    def _wait_line(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
