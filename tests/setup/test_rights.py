"""Every process under exactly the rights of ops/mysql and ops/redis/users.acl."""

import json
import re
import secrets
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
import requests

from countersink.cli.servers import redis_server
from countersink.database.connection import connect
from countersink.database.migrate import migrate
from countersink.metrics.health import probes
from countersink.producers import Producer
from countersink.schedules.jobs import JOBS
from countersink.stream.connection import connect as connect_redis
from tests.cli.command import Servers, call
from tests.support.databases import dropped, new_name
from tests.support.factories import RedisFactory
from tests.support.processes import COUNTERSINK, Child
from tests.support.servers import MySQLServer
from tests.support.waiting import eventually
from tests.worker.running import drain

OPS = Path(__file__).resolve().parents[2] / "ops"
LINE = '192.0.2.7 - - [21/Nov/2026:10:00:0{} +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n'
EVERY_SECOND = {f"COUNTERSINK_SCHEDULER_{name.upper()}_CRON": "* * * * * *" for name in JOBS}


class Site:
    """Servers whose users are those of the files; each process has one of them.

    Args:
        mysql: a server, whose administrator makes the users.
        redis_url: where a Redis is whose users are those of a file.
        database: to be made.
    """

    def __init__(self, mysql: MySQLServer, redis_url: str, database: str) -> None:
        self._admin = mysql.url
        self._mysql_url = mysql.url_for(database)
        self._redis_url = redis_url
        self._database = database
        self._suffix = secrets.token_hex(4)  # users are the server's, and other tests run on it
        self.children: list[Child] = []

    def run_grants(self) -> None:
        """Both files, each twice, as a person may. Rights outlive their tables, so these go."""
        for _ in range(2):
            self._run("users.sql")
        with connect(self._mysql_url) as session:
            texts = session.query("SELECT @@character_set_database, @@collation_database")
        assert texts == [("utf8mb4", "utf8mb4_bin")]  # as migrate makes a database
        migrate(self._mysql_url)
        for _ in range(2):
            self._run("grants.sql")
        with connect(self._admin, database=False) as session:
            session.execute(f"DROP DATABASE `{self._database}`")

    def _run(self, file: str) -> None:
        text = (OPS / "mysql" / file).read_text()
        text = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
        text = text.replace("`countersink`", f"`{self._database}`")
        text = re.sub(r"'(countersink\w*)'@'%'", rf"'\g<1>{self._suffix}'@'%%'", text)
        with connect(self._admin, database=False) as session:
            for statement in text.split(";"):
                if statement.strip():
                    session.execute(re.sub(r"'change-me-\w+'", "'secret'", statement), ())

    def drop_users(self) -> None:
        users = (OPS / "mysql" / "users.sql").read_text()
        names = re.findall(r"CREATE USER IF NOT EXISTS '(\w+)'", users)
        with connect(self._admin, database=False) as session:
            for name in names:
                session.execute(f"DROP USER IF EXISTS '{name}{self._suffix}'@'%%'", ())

    def redis_refusals(self) -> list[str]:
        """What Redis refused to anybody."""
        with redis.Redis.from_url(self.redis_url("countersink_admin")) as client:
            return [f"{e['username']}: {e['reason']} {e['object']}" for e in client.acl_log()]

    def redis_url(self, user: str) -> str:
        return re.sub(r"//[^@]*@", f"//{user}:secret@", self._redis_url)

    def mysql_url(self, user: str) -> str:
        return re.sub(r"//[^@]*@", f"//{user}{self._suffix}:secret@", self._mysql_url)

    def child(self, mysql_user: str, redis_user: str, *arguments: str, **more: str) -> Child:
        """A countersink process of these two users."""
        urls = self._urls(mysql_user, redis_user)
        child = Child([*COUNTERSINK, *arguments], environment={**urls, **more}, name=arguments[0])
        self.children.append(child)
        return child

    def done(self, mysql_user: str, redis_user: str, *arguments: str, status: int = 0) -> str:
        """What a command of these users says; it ends as it should."""
        done = call(*arguments, **self._urls(mysql_user, redis_user))  # there are many
        assert done.status == status, done.out + done.err
        return done.out + done.err

    def _urls(self, mysql_user: str, redis_user: str) -> dict[str, str]:
        return Servers(self.redis_url(redis_user), self.mysql_url(mysql_user)).variables()


@pytest.fixture(scope="module")
def made(
    mysql_server: MySQLServer, servers_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """With the users of the files, and without tables until the first test makes them."""
    users = tmp_path_factory.mktemp("rights") / "users.acl"
    users.touch()  # until the server runs: it is not asked for a password
    name = new_name()
    with RedisFactory(servers_directory) as own_redis_server, dropped(mysql_server, name):
        server = own_redis_server(extra=["--aclfile", str(users)])
        users.write_text(re.sub(r">\S+", ">secret", (OPS / "redis" / "users.acl").read_text()))
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("ACL", "LOAD")
        site = Site(mysql_server, server.url, name)
        site.run_grants()
        try:
            yield site
        finally:
            site.drop_users()


@pytest.fixture
def site(made: Site) -> Iterator[Site]:
    """Its processes end with the test."""
    yield made
    while made.children:
        made.children.pop().reap()


def test_every_process_does_its_work_under_the_documented_rights(
    site: Site, tmp_path: Path
) -> None:
    refused = site.done("countersink_worker", "countersink_worker", "migrate", status=1)
    assert "denied" in refused
    site.done("countersink_migrate", "countersink_app", "migrate")

    operator = ("countersink", "countersink_operator")
    site.done(*operator, "counter", "set", "capped", "--max-keys", "2")
    site.done(*operator, "counter", "set", "visitors", "--salt-days", "1")
    with connect(site.mysql_url("countersink")) as session:
        # The worker has salts to make, and one to forget.
        session.execute("UPDATE visitor_salt SET begins = begins - 5760, ends = ends - 5760")
    worker = site.child("countersink_worker", "countersink_worker", "worker")
    with Producer(site.redis_url("countersink_app")) as producer:
        producer.increment("page_views", "/home", 3)
        producer.increment("page_views", "/about", id="once")
        producer.increment("page_views", "/about", id="once")
        producer.increment_many("capped", {f"{n}": 1 for n in range(5)})
        assert producer.flush(timeout=30, applied=True), worker.output()
        producer.seen("visitors", "/home", "anna")
        # A flush does not wait for salts.
        eventually(lambda: producer.flush(timeout=30, applied=True), message=worker.output)
    with connect(site.mysql_url("countersink_reader")) as session:
        eventually(lambda: session.query("SELECT 1 FROM queue_look"), message=worker.output)
    log = tmp_path / "access.log"
    log.write_text("".join(LINE.format(n) for n in range(4)))
    site.done("countersink_reader", "countersink_tail", "tail", str(log), "--counter", "tailed")
    site.done("countersink_reader", "countersink_app", "increment", "page_views", "/home")
    with connect_redis(site.redis_url("countersink_app")) as app:
        app.xadd(QUEUE, {"rows": "no JSON"})  # a dead letter is written, too

    reading = ("countersink_reader", "countersink_web")
    totals = ("totals", "page_views", "--by", "key", "--include-pending", "--format", "json")
    rows = json.loads(site.done(*reading, *totals))["rows"]
    assert rows == [{"key": "/home", "total": 4}, {"key": "/about", "total": 1}]
    unique = ("totals", "visitors", "--unique", "--by", "total", "--format", "json")
    seen = [{"total": 1, "estimate": False, "low": 1, "high": 1}]
    eventually(
        lambda: json.loads(site.done(*reading, *unique))["rows"] == seen, message=worker.output
    )
    eventually(lambda: "bad_entry" in site.done(*operator, "dead", "list"), message=worker.output)

    site.done(*operator, "dead", "drop", "--all", "--yes")

    site.child("countersink", "countersink_jobs", "scheduler", **EVERY_SECOND)
    jobs = site.child("countersink", "countersink_jobs", "jobs")
    eventually(lambda: _done(site) == set(JOBS), message=jobs.output)
    site.done(*operator, "info")
    site.done(*operator, "verify")
    site.done(*operator, "backfill", str(log), "--counter", "filled")
    days = "--from", "2026-11-21", "--to", "2026-11-21"
    site.done(*operator, "backfill", str(log), "--counter", "tailed", "--mode", "reconcile", *days)
    site.done(*operator, "sequence", "next", "invoices")
    _front_doors(site)
    assert site.redis_refusals() == []


QUEUE, SALTS = "{countersink:0}:events", "{countersink:0}:salts"
READS_SALTS = ("app", "tail", "web", "jobs", "backup")
FORBIDDEN: dict[str, list[tuple[str, ...]]] = {
    user: [
        *((verb, QUEUE) for verb in ("DEL", "UNLINK", "PERSIST")),
        ("EXPIRE", QUEUE, "1"),
        ("RENAME", QUEUE, "other"),
        ("SET", QUEUE, ""),
        ("XGROUP", "DESTROY", QUEUE, "countersink"),
        ("DEL", "countersink:partitions"),
        ("SET", "countersink:partitions", "9"),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("GET", "of another application"),
    ]
    for user in ("app", "tail", "worker", "jobs", "web", "backup")
}
"""Commands by user that only operators and administrators may give."""
for user in READS_SALTS:
    FORBIDDEN[user] += [("HSET", SALTS, "visits", "x"), ("HDEL", SALTS, "visits"), ("DEL", SALTS)]
for user in ("app", "tail", "web", "backup"):
    FORBIDDEN[user] += [("DEL", "rq:queue:countersink")]
for user in ("app", "tail", "jobs", "web", "backup"):
    FORBIDDEN[user] += [
        ("XDEL", QUEUE, "1-1"),
        ("XTRIM", QUEUE, "MAXLEN", "0"),
        ("XACK", QUEUE, "countersink", "1-1"),
    ]
for user in ("app", "worker", "jobs", "web"):
    FORBIDDEN[user] += [
        ("SET", "{countersink:0}:tail:a", "v"),
    ]
FORBIDDEN["app"] += [("XREVRANGE", QUEUE, "+", "-"), ("HGETALL", "countersink:worker:x")]
FORBIDDEN["web"] += [("XREADGROUP", "GROUP", "g", "c", "STREAMS", QUEUE, ">")]
FORBIDDEN["backup"] += [("GET", "countersink:partitions"), ("XADD", QUEUE, "*", "a", "b")]


@pytest.mark.parametrize("user", ["app", "tail", "worker", "jobs", "web"])
def test_a_process_may_ask_whether_redis_can_be_used(made: Site, user: str) -> None:
    probe = probes(redis=made.redis_url(f"countersink_{user}"), stores=True)["redis"]
    assert probe.get() == ""


@pytest.mark.parametrize("user", FORBIDDEN)
def test_nobody_may_do_more_in_redis_than_the_work_takes(made: Site, user: str) -> None:
    with redis.Redis.from_url(made.redis_url(f"countersink_{user}")) as own:
        assert own.ping()
    with redis.Redis.from_url(made.redis_url("countersink_admin")) as client:
        for command in FORBIDDEN[user]:
            answer = client.execute_command("ACL", "DRYRUN", f"countersink_{user}", *command)
            assert b"has no permissions" in answer, (user, command, answer)


def _front_doors(site: Site) -> None:
    """What comes in by HTTP and StatsD is counted; what web has to read, it may."""
    key = json.loads(
        site.done(
            *("countersink", "countersink_operator", "key", "create", "tests"),
            *("--scope", "admin", "--format", "json"),
        )
    )["key"]
    statsd = site.child("countersink_reader", "countersink_app", "statsd", "--port", "0")
    web = site.child("countersink", "countersink_web", "web", "--port", "0")
    (port,) = eventually(lambda: re.findall(r"udp://127\.0\.0\.1:(\d+)", statsd.output()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"doors:1|c", ("127.0.0.1", int(port)))
    (page,) = eventually(lambda: re.findall(r"listening at (http://\S+)", web.output()))
    with requests.Session() as client:
        client.headers["Authorization"] = f"Bearer {key}"
        sent = client.post(f"{page}/v1/increments?wait=applied", json={"counter": "doors"})
        assert (sent.status_code, sent.json()["state"]) == (200, "applied")
        named = partial(client.post, f"{page}/v1/increments")
        for name, counter, status in (("one", "named", 202), ("two", "no name", 422)):
            answer = named(json={"counter": counter}, headers={"Idempotency-Key": name})
            assert answer.status_code == status
        assert client.post(f"{page}/v1/sequences/invoices/next").json()["value"] == 2
        url = f"{page}/v1/counters/doors/totals?by=total&include_pending=true"
        eventually(lambda: client.get(url).json()["rows"] == [{"total": 2}])
        for path in ("/v1/counters", "/v1/counters/doors/daily", "/v1/system", "/v1/dead"):
            assert client.get(f"{page}{path}").status_code == 200, path
        assert client.get(f"{page}/metrics").status_code == 200
        retried = client.post(f"{page}/v1/dead/retry", json={"all": True})
        assert retried.status_code == 200, retried.text


def _done(site: Site) -> set[str]:
    """The jobs that a run of was done."""
    with connect(site.mysql_url("countersink_reader")) as session:
        rows = session.query("SELECT DISTINCT job FROM job_run WHERE state = 'done'")
    return {job for (job,) in rows}


@pytest.mark.parametrize("user", ["countersink_worker", "countersink_reader"])
def test_who_only_counts_or_looks_changes_no_setting(site: Site, user: str) -> None:
    site.done("countersink_migrate", "countersink_app", "migrate")
    said = site.done(user, "countersink_worker", "counter", "strict", "on", status=1)
    assert "denied" in said


def test_who_uses_a_cluster_may_ask_for_its_masters_and_follow_a_slot_that_moves() -> None:
    acl = (OPS / "redis" / "users.acl").read_text()
    # By name: ASKING is in @connection since Redis 7 only.
    needed = {"+asking", "+cluster|slots", "+cluster|info"}
    rights = re.findall(r"^user (\w+) (.*)", acl, re.MULTILINE)
    bare = {user for user, rules in rights if not needed <= set(rules.split())}
    assert bare == {"default", "countersink_admin", "countersink_backup"}


def test_nobody_comes_in_without_a_name(site: Site) -> None:
    anonymous = re.sub(r"//[^@]*@", "//", site.redis_url("countersink_app"))
    with (
        redis.Redis.from_url(anonymous) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()


@pytest.mark.parametrize(
    ("mysql_user", "redis_user", "said"),
    [
        ("countersink_worker", "countersink_worker", "the rights of a worker: no DELETE"),
        ("countersink", "countersink_operator", "SELECT, INSERT, UPDATE, DELETE on the tables"),
    ],
)
def test_doctor_has_nothing_against_these_rights(
    site: Site, mysql_user: str, redis_user: str, said: str
) -> None:
    site.done("countersink_migrate", "countersink_app", "migrate")
    assert said in site.done(mysql_user, redis_user, "doctor", "--format", "json")


def test_a_restarted_redis_has_nothing_that_was_acknowledged(
    own_redis_server: RedisFactory, mysql_url: str, tmp_path: Path
) -> None:
    """Redis loads transactions of its append-only file with the rights of the user ``default``."""
    server = own_redis_server()
    with Producer(server.url) as producer:
        producer.increment("page_views")
    assert drain(server.url, mysql_url) == 0
    server.stop()
    users = tmp_path / "users.acl"
    users.write_text(re.sub(r">\S+", ">secret", (OPS / "redis" / "users.acl").read_text()))
    conf = str(server.directory / "redis.conf")
    restarted = Child([*redis_server(), conf, "--aclfile", str(users)])
    url = f"redis://{{}}127.0.0.1:{server.port}"
    try:
        with redis.Redis.from_url(url.format("countersink_admin:secret@")) as admin:
            eventually(lambda: "Ready to accept" in restarted.output(), message=restarted.output)
            assert (admin.exists(QUEUE), admin.xlen(QUEUE)) == (1, 0)
        assert "AOF-loading-client" not in restarted.output()
        anonymous = url.format(f":{server.password}@"), url.format("")
        for each in anonymous:
            with (
                redis.Redis.from_url(each) as client,
                pytest.raises(redis.exceptions.AuthenticationError),
            ):
                client.ping()
    finally:
        restarted.reap()
