"""What `export` writes, `backfill` counts: the same totals, whatever the keys are."""

import json
from datetime import datetime
from pathlib import Path

import pytest
import redis

from countersink.stream.names import stream_key
from tests.cli.command import Servers

KEYS = [
    "",
    " ",
    "  two  ",
    "-",
    "=1+1",
    "'=1",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "a\rb",
    "a\r\nb\n\nc",
    "\n=1",
    "\0",
    "\0a",
    "a\0b\0",
    ",",
    '"',
    'say "hi", "twice"',
    '"quoted"',
    "\\",
    '\\"',
    "#comment",
    "á",
    "a\u0301",
    "\u2028",
    "\x0b\x0c\x1c",
    "\ufeff",
    "\U0001f600",
    "x" * 255,
    "é" * 127,
    "x" * 300,
]
MOST, LEAST = 2**63 - 1, -(2**63)
EVENTS = [
    (key, int(datetime.fromisoformat(at).timestamp()) // 60, amounts[number % len(amounts)])
    for number, key in enumerate(KEYS)
    # Around a change of clocks, and in what is the next month in some zones.
    for at, amounts in (
        ("2026-03-28T23:10Z", (1, -7, 0)),
        ("2026-03-29T00:50Z", (10**12, 0)),
        ("2026-03-31T22:20Z", (MOST, LEAST, -1, 5)),
    )
]
FORMATS = ("csv", "ndjson")
ANOTHER = pytest.mark.long("other settings, the same way")
BERLIN = ("--time-zone", "Europe/Berlin")
KOLKATA = ("--time-zone", "Asia/Kolkata")


def count(servers: Servers, client: redis.Redis) -> None:
    rows = [["views", *event] for event in EVENTS]
    client.xadd(stream_key(0), {"rows": json.dumps(rows)})
    servers.apply()
    assert servers.call("dead", "list").out == "There are no dead rows.\n"


def exported(servers: Servers, counter: str, *arguments: str) -> list[dict[str, object]]:
    done = servers.call("export", counter, *arguments, "--format", "ndjson")
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    return [{name: row[name] for name in row if name != "counter"} for row in rows]


@pytest.mark.parametrize(
    ("counted", "zone"),
    [
        pytest.param((), ("--time-zone", "UTC"), id="utc days"),
        pytest.param(BERLIN, BERLIN, id="days of a zone"),
        pytest.param(("--resolution", "quarter", *KOLKATA), KOLKATA, id="quarters of a zone"),
        pytest.param(
            *(("--resolution", "hour", *BERLIN), BERLIN), id="hours of a zone", marks=ANOTHER
        ),
        pytest.param(("--resolution", "quarter"), KOLKATA, id="another zone", marks=ANOTHER),
    ],
)
def test_an_export_comes_back_as_the_same_totals(
    servers: Servers,
    redis_client: redis.Redis,
    tmp_path: Path,
    counted: tuple[str, ...],
    zone: tuple[str, ...],
) -> None:
    for counter in ("views", *FORMATS):
        assert not counted or servers.call("counter", "set", counter, *counted).status == 0
    count(servers, redis_client)
    for format in FORMATS:
        file = tmp_path / f"views.{format}"
        done = servers.call("export", "views", *zone, "--format", format, "--output", str(file))
        assert done.status == 0, done.err
        back = servers.call(
            *("backfill", str(file), "--counter", format, "--input-format", format, *zone),
            *("--key-column", "key", "--time-column", "day", "--amount-column", "total"),
        )
        assert back.status == 0, (back.out, back.err)
    for by in ("key-day", "key-month", "key", "day", "month", "total"):
        views, *again = (exported(servers, name, *zone, "--by", by) for name in ("views", *FORMATS))
        assert again == [views, views], by


def test_hours_and_months_come_back_too(
    servers: Servers, redis_client: redis.Redis, tmp_path: Path
) -> None:
    for name in ("views", *(f"{kind}_{each}" for kind in ("hours", "months") for each in FORMATS)):
        assert servers.call("counter", "set", name, "--resolution", "hour", *BERLIN).status == 0
    count(servers, redis_client)
    one = ("--by", "hour", "--key", "-")  # whose totals have 64 bits; those of all keys have more
    months = ("--time-column", "month", "--time-format", "%Y-%m", *BERLIN)
    for kind, wanted, same, options in (
        ("hours", one, one[:2], ("--key", "{counter}", "--time-column", "hour")),
        ("months", *2 * (("--by", "key-month"),), ("--key-column", "key", *months)),
    ):
        for format in FORMATS:
            file, counter = tmp_path / f"{kind}.{format}", f"{kind}_{format}"
            servers.call("export", "views", *wanted, "--format", format, "--output", str(file))
            back = servers.call(
                *("backfill", str(file), "--counter", counter, "--input-format", format),
                *(*options, "--amount-column", "total"),
            )
            assert back.status == 0, (back.out, back.err)
            assert exported(servers, counter, *same) == exported(servers, "views", *wanted)
