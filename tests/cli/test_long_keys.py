"""A key of more than 255 bytes is one key, whatever it comes in by, and is found by all of it."""

import json
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import redis

from countersink.counting.apply.dead import DeadRow, insert
from countersink.database.connection import connect
from countersink.producers import Increment, Producer
from countersink.statsd.options import StatsdOptions, read
from countersink.statsd.tally import StatsdTally
from countersink.store import Store
from countersink.stream.connection import connect as connected
from countersink.stream.entry import new_entry_id
from countersink.stream.names import stream_key
from tests.cli.command import Servers
from tests.support.app_connection import open_app
from tests.support.asking import Asking

# 237 bytes, so that the character after them would begin within what is kept and end beyond it.
BEGINNING = "/" + "x" * 236
KEY = BEGINNING + "ü" * 40
FORM = f"{BEGINNING}~{sha256(KEY.encode()).hexdigest()[:16]}"
AT = datetime(2026, 5, 12, 8, tzinfo=UTC)
DAY = "2026-05-12"
MINUTE = int(AT.timestamp()) // 60


def produced(servers: Servers) -> int:
    with Producer(servers.redis_url) as producer:
        producer.increment("views", KEY, at=AT)
        producer.increment("views", KEY, 2, at=AT, id="one")
        # Both are one key, of which no count may be lost.
        producer.increment_many("views", {KEY: 3, FORM: 4, "/other": 0}, at=AT)
        assert producer.increment_batch([Increment("views", KEY, 5, AT)])
        tally = StatsdTally(
            producer,
            read({"rule": [{"match": "views.*", "counter": "views", "key": "$1"}]}),
            StatsdOptions(max_ahead_s=10**9, max_age_days=0),
        )
        tally.packets([f"views.{KEY}:6|c|T{int(AT.timestamp())}".encode()])
        tally.deliver()
    return 1 + 2 + 3 + 4 + 5 + 6


def sent(servers: Servers) -> int:
    """By a program of another language, by hand, and once before such keys were cut."""
    with redis.Redis.from_url(servers.redis_url) as client:
        client.xadd(stream_key(0), {"rows": json.dumps([["views", KEY, MINUTE, 7]])})
    done = servers.call("increment", "views", "--at", AT.isoformat(), "--amount", "8", "--", KEY)
    assert done.status == 0, done.err
    now = int(AT.timestamp() * 1000)
    payload = json.dumps(["views", KEY, MINUTE, 9]).encode()
    entry_id = bytes.fromhex(new_entry_id(now))
    dead = DeadRow(entry_id, 0, stream_key(0), now, "bad_key", "too long", payload)
    with connect(servers.mysql_url) as session, session.transaction():
        insert(session, [dead])
    assert servers.call("dead", "retry", "--reason", "bad_key").status == 0
    return 7 + 8 + 9


def read_of_files(servers: Servers, directory: Path) -> int:
    log = f'h - - [12/May/2026:08:00:00 +0000] "GET {quote(KEY)} HTTP/1.1" 200 1\n'
    log = log.replace(quote("ü"), r"\xc3\xbc")
    tailed, filled = directory / "tail.log", directory / "fill.log"
    tailed.write_text(log)
    filled.write_text(log * 2)
    done = servers.call("tail", str(tailed), "--counter", "views")
    assert (done.status, done.out) == (0, "views: counted 1, rejected 0\n"), done.err
    columns = ("--time-column", "time", "--amount-column", "n")
    csv, records = directory / "fill.csv", directory / "fill.ndjson"
    csv.write_text(f"time,key,n\n{AT.isoformat()},{KEY},3\n")
    half = len(KEY) // 2
    records.write_text(
        json.dumps({"time": AT.isoformat(), "a": KEY[:half], "b": KEY[half:], "n": 4}) + "\n"
    )
    for arguments in (
        (str(filled),),
        ("--input-format", "csv", str(csv), *columns, "--key-column", "key"),
        ("--input-format", "ndjson", str(records), *columns, "--key", "{a}{b}"),
    ):
        done = servers.call("backfill", *arguments, "--counter", "views")
        assert done.status == 0, (done.out, done.err)
    return 1 + 2 + 3 + 4


def in_transaction(servers: Servers) -> int:
    with Store(servers.mysql_url) as store, closing(open_app(servers.mysql_url)) as app:
        store.increment(app, "views", KEY, 10, at=AT)
        store.increment_many(app, "views", {KEY: 11, FORM: 12}, at=AT)
        app.commit()
    return 10 + 11 + 12


def test_every_door_counts_a_long_key_under_one_form_by_which_it_is_found(
    servers: Servers, tmp_path: Path
) -> None:
    total = produced(servers)
    total += sent(servers)
    pending = servers.call(
        "totals", "views", "--key", KEY, "--by", "key", "--include-pending", "--format", "json"
    )
    assert pending.json["rows"] == [{"key": FORM, "total": total}], pending.err
    with Store(servers.mysql_url) as store, connected(servers.redis_url) as client:
        found = Asking(store, client).many("views", [KEY, FORM], include_pending=True).value
    assert found == {KEY: total, FORM: total}
    servers.apply()
    total += read_of_files(servers, tmp_path) + in_transaction(servers)
    servers.apply()
    assert servers.call("dead", "list").out == "There are no dead rows.\n"
    by_key = servers.rows("views", "--by", "key")
    assert by_key == [{"key": FORM, "total": total}, {"key": "/other", "total": 0}]
    by_day = servers.rows("views", "--key", KEY)
    assert by_day == [{"day": DAY, "total": total}]
    exported = servers.call("export", "views", "--key", KEY, "--format", "ndjson")
    assert [json.loads(line)["total"] for line in exported.out.splitlines()] == [total]
    with Store(servers.mysql_url) as store:
        assert store.totals.total("views", key=KEY) == total
        assert store.totals.many("views", [KEY, FORM]) == {KEY: total, FORM: total}
        assert store.totals.daily("views", key=KEY) == [(AT.date(), total)]
        assert store.totals.span("views", key=KEY) == (AT.date(), AT.date())
    deleted = servers.call("counter", "delete", "views", "--key", KEY, "--yes")
    assert deleted.status == 0, deleted.err
    left = servers.rows("views", "--by", "key")
    assert left == [{"key": "/other", "total": 0}]
