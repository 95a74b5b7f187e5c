"""The launcher of the local servers, with real servers, as the user that runs the suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
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
def _no_servers_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


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


def _temporary_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("hybridcloud-servers-*"))


def _ask(url: str, sql: LiteralString) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def _wait_gone(pids: list[int]) -> None:
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
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

    def test_nothing_stays_behind(self) -> None:
        before = _temporary_folders()
        servers = start(durable=False)
        assert _temporary_folders() != before
        servers.stop()
        servers.stop()
        _wait_gone(list(servers.pids.values()))
        assert _temporary_folders() <= before

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to run servers as")
    def test_root_runs_the_servers_as_another_user(self, servers: Servers) -> None:
        assert all(psutil.Process(pid).uids().real != 0 for pid in servers.pids.values())


class TestKeptData:
    @pytest.mark.parametrize("durable", [True, False])
    def test_survive_a_stop_in_a_path_with_a_space(self, tmp_path: Path, *, durable: bool) -> None:
        folder = _open_way(tmp_path) / "a folder with spaces"
        with start(folder, durable=durable) as servers:
            _ask(servers.databases["cell_eu"], "CREATE TABLE kept AS SELECT 7 AS number")
        with start(folder, durable=durable) as servers:
            assert _ask(servers.databases["cell_eu"], "SELECT number FROM kept") == 7

    def test_a_second_start_in_the_same_folder_is_refused(self, tmp_path: Path) -> None:
        with (
            start(tmp_path, durable=False),
            pytest.raises(ServerError, match=r"^Servers run from .* already"),
        ):
            start(tmp_path, durable=False)

    @pytest.mark.skipif(os.geteuid() != 0, reason="for others than root no way is closed")
    def test_stay_elsewhere_where_the_servers_user_cannot_go(self, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        for _ in range(2):
            with start(closed / "run", durable=False) as servers:
                place = Path((closed / "run/postgres/location").read_text())
                assert _ask(servers.postgres_url, "SHOW data_directory") == str(place / "data")
        for note in (closed / "run").glob("*/location"):
            subprocess.run(["rm", "-rf", note.read_text()], check=True)

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

    def test_nothing_survives_a_launcher_that_was_killed(self) -> None:
        before = _temporary_folders()
        process = _cli("--", "sh", "-c", "echo ready; exec sleep 600")
        self._wait_line(process)
        family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 3
        process.kill()
        process.communicate()
        _wait_gone(family)
        with start(durable=False):
            pass
        assert _temporary_folders() <= before

    @staticmethod
    def _wait_line(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


def _open_way(path: Path) -> Path:
    """Let the servers' user through the folders that pytest keeps to itself."""
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.parent != folder:
            folder.chmod(folder.stat().st_mode | 0o011)
        if folder.parent == Path(tempfile.gettempdir()):
            break
    return path
