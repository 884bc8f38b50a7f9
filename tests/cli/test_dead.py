"""`countersink dead`: rows that could not be counted."""

import json

import pytest
import redis

from countersink.counting.apply.dead import DeadRow, insert
from countersink.database.connection import connect
from countersink.stream.entry import VERSION, new_entry_id
from countersink.stream.names import stream_key
from tests.cli.command import Servers, one_sentence
from tests.cli.test_doctor import lines

NOW = 1_795_000_000_000
MINUTE = NOW // 60_000


def send(client: redis.Redis, rows: list[list[object]], *, version: int = 1) -> str:
    """Put an entry of our own making into the queue; its id."""
    entry_id = new_entry_id(NOW)
    client.xadd(
        stream_key(0),
        {"v": version, "id": entry_id, "at": NOW, "rows": json.dumps(rows)},
    )
    return entry_id


@pytest.fixture
def dead(servers: Servers, redis_client: redis.Redis) -> dict[str, str]:
    """Three dead rows: refs by reason."""
    mixed = send(
        redis_client,
        [["c", "good", MINUTE, 1], ["c", "\x1b[2J\ud800", MINUTE, 1], ["c", "k", -5, 1]],
    )
    newer = send(redis_client, [["c", "newer", MINUTE, 7]], version=VERSION + 1)
    servers.apply()
    return {"bad_key": f"{mixed}:1", "bad_minute": f"{mixed}:2", "newer_version": f"{newer}:-1"}


def good_again(servers: Servers, *, reason: str = "bad_sketch") -> str:
    """A dead row that nothing is wrong with any more; its ref."""
    entry_id = new_entry_id(NOW)
    payload = json.dumps(["c", "again", MINUTE, 7]).encode()
    row = DeadRow(bytes.fromhex(entry_id), 3, stream_key(0), NOW, reason, "was so once", payload)
    with connect(servers.mysql_url) as session, session.transaction():
        insert(session, [row])
    return row.ref


def listed(servers: Servers, *arguments: str) -> dict[str, str]:
    rows = servers.json("dead", "list", *arguments)["rows"]
    return {row["reason"]: row["ref"] for row in rows}


def test_they_are_listed_with_their_reasons_and_the_table_is_safe_to_look_at(
    servers: Servers, dead: dict[str, str]
) -> None:
    document = servers.json("dead", "list")
    assert {row["reason"]: row["ref"] for row in document["rows"]} == dead
    assert document["by_reason"] == {"bad_key": 1, "bad_minute": 1, "newer_version": 1}
    assert document["total"] == 3
    assert document["rows"][0]["created"].endswith("Z")
    assert listed(servers, "--reason", "bad_key") == {"bad_key": dead["bad_key"]}
    assert listed(servers, dead["newer_version"]) == {"newer_version": dead["newer_version"]}
    assert len(listed(servers, dead["bad_key"].partition(":")[0])) == 2
    assert len(listed(servers, "--limit", "1")) == 1
    shown = servers.call("dead", "list").out
    assert "\x1b" not in shown
    assert dead["bad_key"] in shown
    assert "3 of 3 shown" in shown
    csv = servers.call("dead", "list", "--format", "csv").out
    assert csv.startswith("ref,reason,detail,stream,at,created,payload,truncated\r\n")
    assert len(csv.splitlines()) == 4


def test_what_can_be_counted_now_is_and_the_rest_stays(
    servers: Servers, dead: dict[str, str]
) -> None:
    ref = good_again(servers)
    done = servers.call("dead", "retry", "--all", "--format", "json")
    assert done.status == 3
    assert done.json == {"retried": 1, "failed": 3, "rows": 1, "left_out": 0}
    assert listed(servers) == dead
    rows = servers.rows("c", "--by", "key")
    assert rows == [{"key": "again", "total": 7}, {"key": "good", "total": 1}]
    assert servers.call("dead", "retry", ref).status == 0
    assert servers.call("dead", "retry", dead["newer_version"]).status == 3


def test_what_may_be_counted_already_is_left_out_unless_asked_for(servers: Servers) -> None:
    good_again(servers)
    refs = [good_again(servers, reason="too_old") for _ in range(2)]
    done = servers.call("dead", "retry", "--all")
    assert done.status == 0
    assert done.out == (
        "retried 1 (1 row counted), failed 0\n"
        "left out 2 with the reason too_old or reconciled, which may be counted already:"
        " --reason or REF retries them\n"
    )
    assert servers.call("dead", "retry", refs[0]).out == "retried 1 (1 row counted), failed 0\n"
    assert servers.json("dead", "retry", "--all")["left_out"] == 1
    assert servers.call("dead", "retry", "--reason", "too_old").out.startswith("retried 1 ")
    assert listed(servers) == {}
    assert "too_old" in servers.call("dead", "retry", "--help").out


def test_dropping_is_for_good(servers: Servers, dead: dict[str, str]) -> None:
    assert servers.call("dead", "drop", dead["bad_key"]).out == "dropped 1 row\n"
    assert servers.call("dead", "drop", "--reason", "bad_minute", "--yes").out == "dropped 1 row\n"
    assert set(listed(servers)) == {"newer_version"}
    assert servers.json("dead", "drop", "--all", "--yes") == {"dropped": 1}
    assert servers.call("dead", "list").out == "There are no dead rows.\n"


def test_what_was_not_kept_is_told_everywhere(servers: Servers) -> None:
    good_again(servers)
    servers.execute(
        "INSERT INTO dead_group (reason, counter, not_kept, last_at) VALUES"
        " ('bad_key', '', 2, NOW()), ('bad_key', 'views', 1200, NOW()),"
        " ('bad_minute', '', 0, NOW())"
    )
    assert servers.json("dead", "list")["not_kept"] == [
        {"reason": "bad_key", "counter": "", "rows": 2},
        {"reason": "bad_key", "counter": "views", "rows": 1200},
    ]
    assert servers.call("dead", "list").out.endswith(
        "1 of 1 shown; by reason: bad_sketch 1\n"
        "2 more were not kept: bad_key\n"
        "1,200 more of views were not kept: bad_key\n"
    )
    info = servers.json("info")
    assert (info["dead"], info["dead_not_kept"]) == (1, {"bad_key": 1202})
    said = "1 (bad_sketch 1), and 1,202 more that were not kept: see countersink dead list"
    assert said in " ".join(servers.call("info").out.split())
    doctor = servers.call("doctor", "--format", "json")
    assert lines(doctor)["dead rows"]["found"].startswith("1,203 rows")
    assert servers.json("dead", "drop", "--all", "--yes") == {"dropped": 1}
    assert servers.call("dead", "list").out == "There are no dead rows.\n"
    assert "dead rows: none" in " ".join(servers.call("info").out.replace("  ", ": ").split())


def test_a_schema_of_another_version_is_refused(servers: Servers) -> None:
    servers.execute(
        "INSERT INTO schema_version (version, name, applied_at) VALUES (999, 'x', NOW())"
    )
    for arguments in (["dead", "list"], ["totals", "c"], ["migrate"]):
        assert "upgrade countersink" in one_sentence(servers.call(*arguments), 1)
    found = lines(servers.call("doctor", "--format", "json"))["schema"]
    assert (found["status"], found["advice"]) == ("fail", "upgrade countersink")
    servers.execute("DELETE FROM schema_version WHERE version = 999")  # it can be used again


@pytest.mark.parametrize("command", ["list", "retry", "drop --yes"])
def test_a_reason_that_is_none_is_refused_with_the_nearest_one(
    servers: Servers, command: str
) -> None:
    done = servers.call("dead", *command.split(), "--reason", "unknown_conter")
    said = "there is no reason 'unknown_conter': did you mean unknown_counter?"
    assert said in one_sentence(done, 2)
