"""`countersink spool`: what dead producers left is counted exactly once, whoever sends it."""

import os
import random
import sys
import textwrap
from pathlib import Path

import pytest

from countersink.cli.commands.operate.recovery import SPOOL_COLUMNS
from countersink.producers import Producer
from countersink.producers.spool import list_segments
from countersink.producers.spool.segment import FILE_HEADER_SIZE
from countersink.stream.connection import connect
from tests.cli.command import Servers, call, one_sentence
from tests.logs.tailing import FIRST, write
from tests.producers.helpers import total
from tests.support.examples import MANY
from tests.support.processes import Child, Children
from tests.support.proxies import Deed, Phase, RedisProxy
from tests.support.waiting import eventually

AWAY = "redis://127.0.0.1:1/0"
HOST = """
import json, sys, time
from countersink.cli.commands.operate.recovery import SPOOL_COLUMNS
from countersink.producers import Producer
producer = Producer(sys.argv[1], spool=sys.argv[2], flush_interval=0.01)
for number in range(int(sys.argv[3])):
    producer.increment("hits", f"{number}")
print(json.dumps({"stored": producer.flush(30)}), flush=True)
sys.stdin.read()
"""


def host(children: Children, url: str, directory: Path, increments: int) -> Child:
    """A host's process: it counts, and stays."""
    script = textwrap.dedent(HOST)
    child = children.start(
        [sys.executable, "-c", script, url, str(directory), str(increments)], lines_in=True
    )
    eventually(lambda: '"stored": true' in child.output(), message=child.output)
    return child


def left_behind(directory: Path, *amounts: int) -> None:
    """A segment of one entry for each of the amounts."""
    producer = Producer(AWAY, spool=directory)
    for amount in amounts:
        producer.increment("hits", "a", amount, id=os.urandom(8).hex())
    assert producer.close()


def test_list_shows_what_is_held_and_what_is_waiting(tmp_path: Path, children: Children) -> None:
    left_behind(tmp_path, 1, 2)
    host(children, AWAY, tmp_path, 5)
    done = call("spool", "list", str(tmp_path))
    assert (done.status, done.err) == (0, "")
    head, *rows, last = done.out.splitlines()
    assert head.split() == [name.lstrip("->") for name in SPOOL_COLUMNS]
    assert [row.split()[1] for row in rows] == ["waiting", "held"]
    assert [row.split()[4:] for row in rows] == [["2", "2"], ["1", "5"]]
    assert last == "1 file waits for a replay, with 2 increments."
    found = call("spool", "list", str(tmp_path), "--format", "json").json
    assert found["directory"] == str(tmp_path)
    one, other = found["segments"]
    assert one | {"since": "2026-11-21T08:00:00.000Z"} == {
        "segment": str(list_segments(tmp_path)[0].path),
        "state": "waiting",
        "since": "2026-11-21T08:00:00.000Z",
        "bytes": Path(one["segment"]).stat().st_size,
        "entries": 2,
        "increments": 2,
        "damaged_bytes": 0,
        "detail": None,
    }
    assert other["state"] == "held"


def test_an_empty_directory_and_none(tmp_path: Path) -> None:
    assert call("spool", "list", str(tmp_path)).out == "This spool is empty.\n"
    for command in "list", "replay":
        assert "does not exist" in one_sentence(call("spool", command, str(tmp_path / "typo")), 2)


def test_what_is_left_behind_is_counted_once(servers: Servers, tmp_path: Path) -> None:
    left_behind(tmp_path, 1, 2)
    left_behind(tmp_path, 4)
    done = servers.call("spool", "replay", str(tmp_path))
    assert (done.status, done.err) == (0, "")
    assert done.out == "replayed 3 increments in 3 entries; 2 files done\n"
    assert list(tmp_path.iterdir()) == []
    again = servers.call("spool", "replay", str(tmp_path), "--format", "json")
    assert (again.status, again.json["increments"], again.json["segments"]) == (0, 0, 0)
    servers.apply()
    assert servers.rows("hits", "--by", "total") == [{"total": 7}]


def test_what_was_reconciled_meanwhile_is_not_counted_on_top(
    servers: Servers, tmp_path: Path
) -> None:
    """The log has what lies in the spool, and the day was set to what the log says."""
    spool, log = tmp_path / "spool", tmp_path / "access.log"
    with Producer(AWAY, spool=spool) as producer:
        producer.increment("page_views", "/a", at=FIRST)
        assert producer.flush(20)
    write(log, "/a", "/b")
    day = f"{FIRST:%Y-%m-%d}"
    reconcile = (
        *("backfill", str(log), "--counter", "page_views", "--mode", "reconcile"),
        *("--from", day, "--to", day),
    )
    done = servers.call(*reconcile, "--grace", "0", "--format", "json")
    assert done.status == 0, done.err
    assert (done.status, done.json["corrections"]) == (0, 2)
    assert "replayed 1 increment" in servers.call("spool", "replay", str(spool)).out
    servers.apply()
    assert servers.rows("page_views", "--by", "total") == [{"total": 2}]
    listed = servers.json("dead", "list")
    assert listed["by_reason"] == {"reconciled": 1}
    left = servers.json("dead", "retry", "--all")
    assert (left["retried"], left["left_out"]) == (0, 1)


def test_damaged_and_unreadable_files_are_told_and_kept(servers: Servers, tmp_path: Path) -> None:
    for amounts in ((1, 1, 1), (8,)):
        left_behind(tmp_path, *amounts)
    bad, *_ = sorted(tmp_path.iterdir())
    content = bytearray(bad.read_bytes())
    content[FILE_HEADER_SIZE + 40] ^= 0xFF  # in the first record
    bad.write_bytes(content)
    (tmp_path / "not-ours.spool").write_bytes(b"something else entirely, and long enough")
    (tmp_path / "directory.spool").mkdir()
    os.mkfifo(tmp_path / "pipe.spool")
    before = call("spool", "list", str(tmp_path), "--format", "json")
    assert before.status == 3
    states = {Path(one["segment"]).name: one for one in before.json["segments"]}
    assert states[bad.name]["state"] == "waiting"
    assert states[bad.name]["entries"] == 2
    assert states[bad.name]["damaged_bytes"] > 40
    assert states["not-ours.spool"]["detail"] == "it is not a spool segment"
    assert {states[f"{name}.spool"]["state"] for name in ("directory", "pipe")} == {"unreadable"}
    assert "corrupt bytes" in call("spool", "list", str(tmp_path)).out
    done = servers.call("spool", "replay", str(tmp_path))
    assert done.status == 3
    assert done.out.startswith("replayed 3 increments in 3 entries; 2 files done\n")
    assert "left alone: 3 files that cannot be read or written" in done.out
    assert f"kept: {bad}.damaged: examine it, then delete it" in done.out
    assert "not-ours.spool is not a spool segment" in done.err
    assert "bytes are corrupt and were passed over" in done.err
    with connect(servers.redis_url) as client:
        assert total(client) == 10
    after = call("spool", "list", str(tmp_path))
    assert "damaged" in after.out
    assert after.out.endswith("0 files wait for a replay, with 0 increments.\n")


def test_a_redis_that_is_away_leaves_everything(tmp_path: Path) -> None:
    left_behind(tmp_path, 1)
    done = call("spool", "replay", str(tmp_path), COUNTERSINK_REDIS_URL=AWAY)
    assert "COUNTERSINK_REDIS_URL" in one_sentence(done, 1)
    assert len(list_segments(tmp_path)) == 1
    assert call("spool", "replay", str(tmp_path)).status == 2


@pytest.mark.random
def test_replays_that_are_killed_two_at_once_and_a_host_that_comes_back(
    servers: Servers, tmp_path: Path, children: Children
) -> None:
    """Whatever is killed where: what is stored is counted once."""
    chance = random.Random(5)
    hosts, each, entries = (4, 20_000, 12) if MANY else (2, 8_000, 6)
    with RedisProxy.to(servers.redis_url) as proxy:
        for _ in range(hosts):
            host(children, AWAY, tmp_path, each).kill()
        environment = {"COUNTERSINK_REDIS_URL": proxy.url(servers.redis_url)}
        replaying = ("spool", "replay", str(tmp_path))
        for phase in (Phase.BEFORE, Phase.AFTER, Phase.AFTER)[: 3 if MANY else 2]:
            rule = proxy.when("XADD", phase, Deed.HOLD, skip=chance.randrange(entries), times=0)
            two = [children.countersink(*replaying, environment=environment) for _ in range(2)]
            assert rule.reached.wait(20)
            for one in two:
                one.kill()
            proxy.forget()
        # The host comes back, on the same directory, and a replay beside it.
        beside = children.countersink(*replaying, environment=environment)
        host(children, servers.redis_url, tmp_path, 1_000)
        assert beside.wait() in (0, 3), beside.output()
        eventually(lambda: [one for one in list_segments(tmp_path) if one.entries] == [])
    servers.apply()
    assert servers.rows("hits", "--by", "total") == [{"total": hosts * each + 1_000}]
    assert servers.call("verify").status == 0
