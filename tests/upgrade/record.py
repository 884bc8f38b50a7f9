"""Writes an installation of this version, with everything that may be under way, into a file:
``python -m tests.upgrade.record FILE``. To be run with the last version before a change that an
upgrade has to survive; :mod:`tests.upgrade.test_upgrade` goes on from there.
"""

import base64
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from countersink.cli.servers import MySQLServer, RedisServer
from countersink.producers import Producer
from countersink.store.connection import Session, connect
from countersink.stream.names import GROUP, stream_key
from tests.support.processes import COUNTERSINK, child_environment, countersink
from tests.support.waiting import eventually
from tests.upgrade import contents
from tests.upgrade.contents import DAY, LOG_LINES, access_log, write_big

EVENT = datetime.combine(DAY, datetime.min.time(), UTC)
SETTINGS = """\
[worker]
batch_entries = 100

[jobs]
compact_grace_s = 60.0

[backfill]
max_rejects = 7
"""


def main() -> None:
    """Run it all, and write what lies in the servers and the directories."""
    with tempfile.TemporaryDirectory() as name:
        servers = Path(name)
        with (
            RedisServer(servers / "redis") as redis_server,
            MySQLServer(servers / "mysql") as mysql_server,
            contents.directory() as state,
        ):
            found = installation(redis_server.url, mysql_server.url_for("upgrade"), state)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


def installation(redis_url: str, mysql_url: str, state: Path) -> dict[str, Any]:
    """Use the program as people do, and leave much of it unfinished."""
    (state / "countersink.toml").write_text(SETTINGS)
    environment = {
        "COUNTERSINK_REDIS_URL": redis_url,
        "COUNTERSINK_MYSQL_URL": mysql_url,
        "COUNTERSINK_CONFIG": str(state / "countersink.toml"),
    }

    def run(*arguments: str) -> None:
        done = countersink(*arguments, environment=environment)
        assert done.returncode == 0, done.stderr

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COUNTERSINK, *arguments], env={**child_environment(), **environment}
        )

    run("migrate")
    client = redis.Redis.from_url(redis_url)
    run("counter", "set", "hourly", "--resolution", "hour", "--time-zone", "Europe/Berlin")

    # What is counted, and compacted.
    with Producer(redis_url, handle_sigterm=False) as producer:
        for key, amount in (("a", 1), ("b", 20), ("c", 300)):
            producer.increment("views", key, amount, at=EVENT)
            producer.increment("hourly", key, amount, at=EVENT)
    run("worker", "--drain")
    run("compact", "--counter", "views", "--before", "2026-11-22")

    # Numbers of a sequence.
    run("sequence", "next", "invoice")

    # A log, counted for a part.
    log = state / "access.log"
    log.write_text(access_log(LOG_LINES // 2))
    run("tail", str(log), "--counter", "tailed", "--position-file", str(state / "tail.position"))
    run("worker", "--drain")

    # A backfill that is over, and one that was killed.
    small = state / "small.log"
    small.write_text(access_log(LOG_LINES))
    run("backfill", str(small), "--counter", "filled")
    big = state / "big.log"
    write_big(big)
    session = connect(mysql_url)  # here: one that is idle for long is ended
    backfill = start("backfill", str(big), "--counter", "big", "--jobs", "2", "--rate", "1000")
    eventually(lambda: pending(session), timeout=100)
    backfill.kill()
    backfill.wait()

    # A run of a scheduled job that nobody has taken up.
    scheduler = start("scheduler", "--compact-cron", "* * * * *")
    eventually(lambda: planned(session), timeout=130)
    scheduler.terminate()
    scheduler.wait()

    # Entries that wait, one of them given to a worker that died with it, and a spool.
    with Producer(redis_url, handle_sigterm=False) as producer:
        producer.increment("views", "a", 4_000, at=EVENT)
    client.xreadgroup(GROUP, "dead-worker", {stream_key(0): ">"}, count=1)
    with Producer(redis_url, handle_sigterm=False) as producer:
        producer.increment("views", "b", 50_000, at=EVENT)
        producer.increment("hourly", "b", 50_000, at=EVENT)
    (state / "spool").mkdir()
    away = Producer("redis://127.0.0.1:1/0", spool=str(state / "spool"), handle_sigterm=False)
    away.increment("views", "c", 600_000, at=EVENT)
    away.close(timeout=5)

    big.unlink()
    small.unlink()
    return {
        "version": countersink("--version").stdout.strip(),
        "redis": {
            coded(key): coded(client.dump(key) or b"")
            for key in sorted(client.scan_iter(count=1000))
        },
        "mysql": tables(session),
        "files": {
            str(path.relative_to(state)): coded(path.read_bytes())
            for path in sorted(state.rglob("*"))
            if path.is_file()
        },
    }


def pending(session: Session) -> bool:
    """Whether chunks wait to be counted."""
    return bool(session.query("SELECT 1 FROM backfill_chunk WHERE state = 'pending' LIMIT 1"))


def planned(session: Session) -> bool:
    """Whether a run of the job waits."""
    return bool(session.query("SELECT 1 FROM job_run WHERE job = 'compact' LIMIT 1"))


def tables(session: Session) -> dict[str, Any]:
    """All rows of all tables; bytes as {"base64": …}, times as texts."""
    found = {}
    for (name,) in session.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        " AND table_type = 'BASE TABLE' AND table_name <> 'schema_version' ORDER BY table_name"
    ):
        columns = [
            column
            for (column,) in session.query(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_schema = DATABASE() AND table_name = %s AND extra NOT LIKE"
                " '%%GENERATED%%' ORDER BY ordinal_position",
                (name,),
            )
        ]
        listed = ", ".join(f"`{column}`" for column in columns)
        rows = session.query(f"SELECT {listed} FROM `{name}`")
        found[name] = {
            "columns": columns,
            "rows": [[plain(value) for value in row] for row in rows],
        }
    return found


def plain(value: object) -> object:
    """A value of a column as JSON has it."""
    if isinstance(value, bytes):
        return {"base64": coded(value)}
    return value if isinstance(value, int | float | str | None) else str(value)


def coded(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
