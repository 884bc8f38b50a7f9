"""`countersink sequence`: handing out numbers from a shell."""

import csv
import io
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.cli.command import Result, Servers, answered, one_sentence


@pytest.fixture
def servers(mysql_url: str) -> Servers:
    """A migrated database; no Redis, since sequences need none."""
    return Servers("", mysql_url)


def sequence(servers: Servers, *arguments: str) -> Result:
    return servers.call("sequence", *arguments)


def values(servers: Servers, *arguments: str) -> list[int]:
    """What `next` printed: a number per line and nothing else."""
    done = sequence(servers, "next", *arguments)
    assert (done.status, done.err) == (0, "")
    assert done.out.endswith("\n")
    return [int(line) for line in done.out.splitlines()]


def listed(servers: Servers) -> dict[str, int | None]:
    found = sequence(servers, "list", "--format", "json").json["sequences"]
    return {one["sequence"]: one["value"] for one in found}


def test_next_prints_the_value_and_nothing_else(servers: Servers) -> None:
    first = sequence(servers, "next", "tickets")
    assert (first.status, first.out, first.err) == (0, "1\n", "")
    assert values(servers, "tickets") == [2]
    assert values(servers, "tickets", "--step", "12") == [14]
    assert values(servers, "tickets", "--step", "-20") == [-6]
    assert values(servers, "tickets", "--block", "3") == [-5, -4, -3]
    assert sequence(servers, "next", "tickets", "--format", "json").json == {
        "sequence": "tickets",
        "values": [-2],
    }
    assert values(servers, "seats", "--start", "100", "--block", "3") == [100, 101, 102]
    several = sequence(servers, "next", "tickets", "--block", "2", "--format", "json").json
    assert several["values"] == [-1, 0]


def test_peek_set_and_reset(servers: Servers) -> None:
    values(servers, "tickets")
    assert sequence(servers, "peek", "tickets").out == "1\n"
    assert sequence(servers, "set", "--", "tickets", "-5").out == "tickets is at -5\n"
    assert values(servers, "tickets") == [-4]
    assert sequence(servers, "peek", "tickets", "--format", "json").json == {
        "sequence": "tickets",
        "value": -4,
    }
    assert sequence(servers, "set", "new", "0", "--format", "json").json == {
        "sequence": "new",
        "value": 0,
    }
    assert sequence(servers, "peek", "new").out == "0\n"
    both = sequence(servers, "reset", "tickets", "other")
    assert both.out == "reset tickets, which was at -4\nother had no value\n"
    assert values(servers, "tickets") == [1]
    again = sequence(servers, "reset", "tickets", "--format", "json").json
    assert again == {"reset": 1, "last_values": {"tickets": 1}}
    for name in ("a", "b"):
        values(servers, name)
    assert sequence(servers, "reset", "--all", "--yes").out == "reset 3 sequences\n"
    assert listed(servers) == dict.fromkeys(("a", "b", "new", "tickets"))


def test_a_reset_says_what_it_has_done_once_each_and_before_it_failed(servers: Servers) -> None:
    for name in ("a", "b"):
        values(servers, name)
    assert sequence(servers, "reset", "a", "a").out == "reset a, which was at 1\n"
    values(servers, "a")
    said = sequence(servers, "reset", "b", "a", "b", "--format", "json").json
    assert said == {"reset": 2, "last_values": {"b": 1, "a": 1}}
    values(servers, "a")
    servers.execute(
        "UPDATE sequence SET period_length = 'day', time_zone = 'Mars/Olympus' WHERE name = 'b'"
    )
    failed = sequence(servers, "reset", "a", "b")
    assert (failed.status, failed.out) == (1, "reset a, which was at 1\n")
    assert "install a newer tzdata" in failed.err


def test_list_shows_values_settings_and_times(servers: Servers) -> None:
    assert sequence(servers, "list").out == "There are no sequences.\n"
    before = datetime.now(UTC)
    values(servers, "book: Germinal")
    values(servers, "book: \x1b[2J", "--step", "12")
    sequence(servers, "configure", "tickets", "--minimum", "-9", "--cycle", "--step", "-2")
    found = sequence(servers, "list", "--format", "json").json["sequences"]
    assert [one["sequence"] for one in found] == ["book: \x1b[2J", "book: Germinal", "tickets"]
    assert [one["value"] for one in found] == [12, 1, None]
    updated = datetime.fromisoformat(found[0]["updated_at"])
    assert abs((updated - before).total_seconds()) < 60
    table = sequence(servers, "list").out.splitlines()
    assert sequence(servers, "list", "bill").out == "No sequence begins with bill.\n"
    assert table[1].startswith("book: \\x1b[2J")
    assert "\x1b" not in "".join(table)
    assert table[3].split() == [
        *("tickets", "-", "-", "-"),
        *("step", "-2,", "minimum", "-9,", "cycle"),
    ]
    rows = list(csv.DictReader(io.StringIO(sequence(servers, "list", "--format", "csv").out)))
    assert [row["value"] for row in rows] == ["12", "1", ""]
    some = sequence(servers, "list", "book: ", "--format", "json").json["sequences"]
    assert [one["sequence"] for one in some] == ["book: \x1b[2J", "book: Germinal"]
    assert sequence(servers, "list", "%", "--format", "json").json == {"sequences": []}


def test_configuring_a_sequence(servers: Servers) -> None:
    refused = sequence(servers, "configure", "a", "--minimum", "5", "--maximum", "4")
    assert "minimum" in one_sentence(refused, 2)
    assert listed(servers) == {}
    made = sequence(
        servers,
        *("configure", "tickets", "--start", "10", "--step", "5"),
        *("--minimum", "0", "--maximum", "20", "--format", "json"),
    )
    assert made.json == {
        "sequence": "tickets",
        "value": None,
        "period_start": None,
        "updated_at": None,
        "start": 10,
        "step": 5,
        "minimum": 0,
        "maximum": 20,
        "cycle": False,
        "period": "none",
        "time_zone": "UTC",
    }
    assert [values(servers, "tickets") for _ in range(3)] == [[10], [15], [20]]
    assert "doctor" not in one_sentence(sequence(servers, "next", "tickets"), 1)
    sequence(servers, "configure", "tickets", "--cycle")
    assert values(servers, "tickets") == [10]
    kept = sequence(servers, "configure", "tickets", "--maximum", "none", "--no-cycle")
    shown = dict(line.split(maxsplit=1) for line in kept.out.splitlines() if line.split()[1:])
    assert (shown["start"].strip(), shown["minimum"].strip()) == ("10", "0")
    assert shown["maximum"].strip() == "-"
    assert values(servers, "tickets", "--block", "3") == [15, 20, 25]
    fresh = sequence(servers, "configure", "tickets", "--step", "none", "--format", "json").json
    assert (fresh["step"], fresh["value"]) == (1, 25)


def test_periods_of_a_month_in_a_time_zone(servers: Servers) -> None:
    zone = ZoneInfo("Asia/Kathmandu")
    sequence(servers, "configure", "sales", "--period", "month", "--time-zone", zone.key)
    months = {datetime.now(zone).strftime("%Y-%m-01")}
    assert values(servers, "sales", "--block", "7")[-1] == 7
    months.add(datetime.now(zone).strftime("%Y-%m-01"))
    periods = sequence(servers, "periods", "sales", "--format", "json").json
    (only,) = periods["periods"]
    assert only["period_start"] in months
    assert (only["value"], periods["total"]) == (7, 7)
    assert sequence(servers, "peek", "sales", "--period", only["period_start"]).out == "7\n"
    assert sequence(servers, "periods", "sales").out.splitlines()[1].split()[:2] == [
        only["period_start"],
        "7",
    ]
    assert sequence(servers, "periods", "sales", "--format", "csv").out.count("\n") == 2
    refused = sequence(servers, "configure", "sales", "--period", "day")
    assert "delete it first" in one_sentence(refused, 2)


@pytest.mark.parametrize(
    ("arguments", "asked", "left"),
    [
        (["delete", "a"], "Delete sequence a for good?", {}),
        (["reset", "--all"], "Restart all sequences?", {"a": None}),
    ],
)
def test_on_a_terminal_it_asks_first(
    servers: Servers, arguments: list[str], asked: str, left: dict[str, None]
) -> None:
    values(servers, "a")
    assert "--yes" in one_sentence(sequence(servers, *arguments), 2)
    asking = answered("n", "sequence", *arguments, **servers.variables())
    assert asked in asking.err
    assert asking.status == 1
    assert listed(servers) == {"a": 1}
    assert sequence(servers, *arguments, "--yes").status == 0
    assert listed(servers) == left
