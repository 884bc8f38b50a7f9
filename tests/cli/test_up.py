"""`countersink up`: one command from nothing to totals, and nothing left behind."""

import io
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis

from countersink.cli import servers as server_programs
from countersink.cli.commands import up as up_module
from countersink.cli.commands.up import COMMANDS
from countersink.cli.errors import ServerFailed
from countersink.cli.private_server import PrivateServer, Restartable
from countersink.database.sessions import open_tables
from countersink.producers import Producer
from countersink.schedules.jobs import JOBS
from countersink.store import Store, StoreError, api_keys
from tests.cli.command import call, countersink, environment, one_sentence
from tests.support.processes import is_running
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

MARIADB_ONLY = pytest.mark.skipif(
    os.environ.get("COUNTERSINK_TEST_SERVER") == "mysql", reason="`up` starts MariaDB"
)

PROGRAM = """
from countersink.cli.commands import up
from countersink.cli.entry import main
up.COMMANDS = {}
main()
"""
FEWER = ("worker", "web")
"""A process that listens, and one that does not."""


def process_of(parent: int, name: str) -> int:
    """The number of the first child that runs `countersink NAME`."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            own = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
        except (OSError, ValueError, IndexError):
            continue  # no process, or not any more
        if own and name.encode() in words:
            return int(entry.name)
    raise AssertionError(f"no process runs countersink {name}")


class Up:
    """A running `countersink up`."""

    def __init__(
        self,
        directory: Path,
        arguments: list[str],
        variables: dict[str, str],
        commands: Sequence[str] = COMMANDS,
    ) -> None:
        self.data = directory / "data"
        self.commands = commands
        self._output = directory / "output"
        self._begins = self._output.stat().st_size if self._output.exists() else 0
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(tuple(commands)), "up", *arguments],
                cwd=directory,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self) -> str:
        """The output of this process, without that of earlier ones in the same file."""
        return self._output.read_bytes()[self._begins :].decode(errors="replace")

    def wait_for(self, pattern: str) -> str:
        def found() -> str | None:
            if matches := re.findall(pattern, self.output()):
                return str(matches[0]) or "found"
            assert self.process.poll() is None, f"it ended:\n{self.output()}"
            return None

        result = eventually(found, timeout=60, message=self.output)
        assert result is not None
        return result

    def urls(self) -> dict[str, str]:
        """What its environment file exports."""
        words = shlex.split((self.data / "environment.sh").read_text(), comments=True)
        return dict(word.split("=", 1) for word in words if "=" in word)

    def server_pids(self) -> list[int]:
        files = [self.data / "redis/redis.started", self.data / "mysql/mysql.started"]
        return [int(file.read_text().split()[0]) for file in files if file.exists()]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


Start = Callable[..., Up]


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Start]:
    """Starts `countersink up`, by default on data in the test's directory."""
    made: list[Up] = []

    def start(commands: Sequence[str] = COMMANDS, **variables: str) -> Up:
        ports = ["--web-port", "0", "--statsd-port", "0"]  # the usual ones may be anybody's
        up = Up(tmp_path, ["--data", str(tmp_path / "data"), *ports], variables, commands)
        made.append(up)
        return up

    yield start
    for up in made:
        if up.process.poll() is None:
            up.stop()


@MARIADB_ONLY
def test_from_nothing_to_totals_and_the_data_outlives_a_restart(start_up: Start) -> None:
    first = start_up()
    first.wait_for(r"countersink is up\.")
    urls = first.urls()
    assert call("increment", "page_views", "/home", **urls).status == 0
    pids = first.server_pids()
    assert len(pids) == 2
    eventually(lambda: total(urls) == 1)
    eventually(lambda: planned_jobs(urls) == set(JOBS))
    key = front_doors_count(first, urls)
    assert first.stop(signal.SIGINT) == 0
    assert not any(map(is_running, pids))
    ended = re.findall(r"(a (?:worker|job process|scheduler) ends)", first.output())
    assert ended == [
        "a scheduler ends",
        "a job process ends",
        "a job process ends",
        "a worker ends",
    ]
    assert re.search(r"^worker    \| \S+Z info    started ", first.output(), re.MULTILINE)
    assert "\x1b[" not in first.output()  # no terminal, no colour

    second = start_up(FEWER, **urls)  # as a shell that has read environment.sh
    second.wait_for(r"countersink is up\.")
    page, same_key = page_and_key(second)
    # the same ports and passwords, but for the page, whose port was any free one
    assert second.urls() == urls | {"COUNTERSINK_LINK_CREATE_URL": page}
    assert same_key == key
    assert total(urls) == 3
    another_is_refused(second)
    what_dies_is_started_again_and_all_end_when_it_is_killed(second)
    passwords_are_kept(second, urls)


def what_dies_is_started_again_and_all_end_when_it_is_killed(up: Up) -> None:
    """Its processes, and a server."""
    redis_pid, _ = up.server_pids()
    killed = {name: process_of(up.process.pid, name) for name in up.commands}
    for pid in (redis_pid, *killed.values()):
        os.kill(pid, signal.SIGKILL)
    for name in ("redis", *killed):
        up.wait_for(rf"the {name} was killed by SIGKILL; starting it again in 1 s")
        up.wait_for(rf"the {name} runs again")
    again = [process_of(up.process.pid, name) for name in killed]
    assert not set(again) & set(killed.values())
    pids = [*up.server_pids(), *again]
    assert len(pids) == 2 + len(killed)
    assert all(map(is_running, pids))
    up.process.kill()
    up.process.wait()
    eventually(lambda: not any(map(is_running, pids)))


def another_is_refused(up: Up) -> None:
    """A second one on the same data ends, and the first goes on."""
    second = countersink("up", "--data", str(up.data))
    assert second.status == 1
    assert f"another countersink up is using {up.data}" in second.err
    assert all(map(is_running, up.server_pids()))


def passwords_are_kept(up: Up, urls: dict[str, str]) -> None:
    """They are in a file that nobody else can read, and in no output."""
    assert stat.S_IMODE(up.data.stat().st_mode) == 0o700
    for name in ("environment.sh", "web.key"):
        assert stat.S_IMODE((up.data / name).stat().st_mode) == 0o600
    passwords = [url.split("@")[0].rpartition(":")[2] for url in urls.values() if "@" in url]
    assert len(passwords) == 2
    for password in passwords:
        assert password not in up.output()


def page_and_key(up: Up) -> tuple[str, str]:
    """The address of its web process, and the key in the one that it prints."""
    page, _, key = up.wait_for(r"  web     (http://127\.0\.0\.1:\d+/login#key=\S+)").partition(
        "/login#key="
    )
    return page, key


def front_doors_count(up: Up, urls: dict[str, str]) -> str:
    """One by HTTP and one by StatsD, at the addresses that it names; the key that it made."""
    page, key = page_and_key(up)
    assert (up.data / "web.key").read_text() == f"{key}\n"
    up.wait_for(rf"listening at {page}")
    body = json.dumps({"counter": "page_views", "key": "/home"}).encode()
    request = urllib.request.Request(
        f"{page}/v1/increments", body, {"Content-Type": "application/json", "X-API-Key": key}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 202
    port = int(up.wait_for(r"  statsd  udp://127\.0\.0\.1:(\d+)"))
    up.wait_for(rf"at=udp://127\.0\.0\.1:{port}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"page_views:1|c", ("127.0.0.1", port))
    eventually(lambda: total(urls) == 3)
    return key


def planned_jobs(urls: dict[str, str]) -> set[str]:
    done = call("runs", "--format", "json", **urls)
    return {run["job"] for run in done.json["next"]}


def total(urls: dict[str, str]) -> int | None:
    window = ("--last", "24h", "--by", "total", "--format", "json")
    done = call("totals", "page_views", *window, **urls)
    if done.status != 0:
        return None  # an unknown counter, so far
    return int(done.json["rows"][0]["total"])


def test_configured_servers_are_used_and_never_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    redis_server: RedisServer,
    redis_url: str,
    empty_mysql_url: str,
) -> None:
    """In this process, and with a worker alone: the others are the same with private servers."""
    monkeypatch.setattr(up_module, "COMMANDS", ("worker",))
    monkeypatch.setattr(up_module, "WEB_MODULE", "no_web_is_installed")
    urls = {"COUNTERSINK_REDIS_URL": redis_url, "COUNTERSINK_MYSQL_URL": empty_mysql_url}
    with Producer(redis_url) as producer:
        producer.increment("page_views")

    def counted() -> bool:
        try:
            with Store(empty_mysql_url) as store:
                return store.totals.total("page_views") == 1
        except StoreError:
            return False  # there are no tables yet

    def end_when_counted() -> None:
        try:
            eventually(counted, 60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should it end before
    ending = threading.Thread(target=end_when_counted)
    ending.start()
    try:
        data = tmp_path / "data"
        done = call("up", "--data", str(data), "--statsd-port", "0", **urls)
    finally:
        ending.join()
        signal.signal(signal.SIGTERM, before)
    assert (done.status, "countersink is up." in done.out) == (0, True), done.err
    for variable in urls:
        assert f"{variable} is set: using " in done.err
    assert counted()
    with open_tables(empty_mysql_url) as session:
        assert api_keys.is_valid(session, (data / "web.key").read_text().strip())
    assert redis_server.running
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_the_environment_file_sets_a_configured_url_too(
    start_up: Start, empty_mysql_url: str
) -> None:
    url = f"{empty_mysql_url}?ssl_verify=&ssl="
    up = start_up((), COUNTERSINK_MYSQL_URL=url)
    up.wait_for(r"# sets COUNTERSINK_MYSQL_URL and COUNTERSINK_REDIS_URL")
    assert up.urls()["COUNTERSINK_MYSQL_URL"] == url
    assert f"MYSQL_URL='{url}'" in (up.data / "environment.sh").read_text()


def test_a_command_without_a_url_names_the_file_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "environment.sh" not in one_sentence(call("totals", "page_views"), 2)
    (tmp_path / "countersink-data").mkdir()
    (tmp_path / "countersink-data/environment.sh").touch()
    said = one_sentence(call("totals", "page_views"), 2)
    assert "; `. countersink-data/environment.sh` sets that of `countersink up`." in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_data_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    done = call("up", "--data", str(tmp_path))
    assert "belongs to another user (uid 12345)" in one_sentence(done, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_server_program_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_programs, "find_program", lambda name: None)
    done = call("up", "--data", str(tmp_path / "data"))
    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        "countersink: redis-server is not installed: install the package redis-server"
    )


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_lines_of_a_process_begin_with_its_name_and_json_stays_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream, name in (
        (io.StringIO(), "web       | "),
        (Terminal(), "\x1b[34mweb       | \x1b[0m"),
    ):
        reader, writer = os.pipe()
        os.write(writer, b'ready \xff\n{"action": "ready"}\nthe end')
        os.close(writer)
        monkeypatch.setattr("sys.stderr", stream)
        up_module.relay("web", reader)
        assert stream.getvalue() == f'{name}ready \ufffd\n{{"action": "ready"}}\n{name}the end\n'


class NeverUp(Restartable):
    """A server that ends as soon as it answers, and from then on never answers."""

    name = "server"

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    @property
    def running(self) -> bool:
        """It has ended."""
        return False

    def how_it_ended(self) -> str:
        """In few words."""
        return "ended"

    def start(self) -> object:
        """Wait for its answer, in vain."""
        self.clock[0] += PrivateServer.start_timeout
        raise ServerFailed("it did not answer")

    def stop(self) -> None:
        """It does not run."""


def test_the_pause_grows_while_a_server_never_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("countersink.cli.commands.up.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("countersink.cli.commands.up.settings.known_urls", set)
    restarter = up_module.Restarter(NeverUp(clock))
    for _ in range(200):
        restarter.check()
        clock[0] += up_module.CHECK_EVERY_S
    pauses = re.findall(r"again in (\d+) s", capsys.readouterr().err)
    assert pauses[:6] == ["1", "2", "4", "8", "16", "30"]
