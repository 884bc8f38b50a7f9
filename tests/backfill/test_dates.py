"""Dates without a time: a date is a day of the counter, whatever its zone and resolution."""

from pathlib import Path

import pytest

from tests.cli.command import Servers

DAYS = {"2026-03-28": 1, "2026-03-29": 2, "2026-03-30": 3}


@pytest.fixture
def servers(redis_url: str, mysql_url: str) -> Servers:
    return Servers(redis_url, mysql_url)


@pytest.mark.parametrize(
    ("zone", "resolution"),
    [
        ("UTC", "day"),
        ("Europe/Berlin", "hour"),
        ("Pacific/Kiritimati", "day"),
        ("America/Nome", "quarter"),
    ],
)
def test_a_date_stays_its_day(servers: Servers, zone: str, resolution: str, tmp_path: Path) -> None:
    made = ("--time-zone", zone, "--resolution", resolution)
    assert servers.call("counter", "set", "sold", *made).status == 0
    iso, german, objects = (tmp_path / name for name in ("a.csv", "b.csv", "c.ndjson"))
    iso.write_text("day,key,total\n" + "".join(f"{day},a,{n}\n" for day, n in DAYS.items()))
    german.write_text(
        "day,key,total\n" + "".join(f"{d[8:]}.{d[5:7]}.{d[:4]},b,{n}\n" for d, n in DAYS.items())
    )
    objects.write_text("".join(f'{{"day":"{d}","key":"c","total":{n}}}\n' for d, n in DAYS.items()))
    columns = ("--key-column", "key", "--time-column", "day", "--amount-column", "total")
    for source, options in (
        (iso, ("--input-format", "csv")),
        (german, ("--input-format", "csv", "--time-format", "%d.%m.%Y")),
        (objects, ("--input-format", "ndjson", "--time-zone", "Europe/Berlin")),
    ):
        run = ("backfill", str(source), "--counter", "sold", *columns, *options)
        dry = servers.call(*run, "--dry-run", "--format", "json")
        assert {each["day"]: each["amount"] for each in dry.json["by_day"]} == DAYS, dry.err
        assert servers.call(*run).status == 0
    zone_of_totals = () if resolution == "day" else ("--time-zone", zone)
    for key in "abc":
        shown = servers.call(
            *("totals", "sold", "--key", key, "--by", "day", "--format", "json", *zone_of_totals)
        )
        assert {row["day"]: row["total"] for row in shown.json["rows"]} == DAYS


def test_a_date_before_all_time_is_rejected(servers: Servers, tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("day,key\n1969-12-31,a\n2026-02-30,a\n1970-01-01,a\n")
    done = servers.call(
        *("backfill", str(source), "--counter", "sold", "--input-format", "csv", "--dry-run"),
        *("--key-column", "key", "--time-column", "day", "--format", "json"),
    )
    assert done.status == 3
    assert done.json["by_day"] == [{"day": "1970-01-01", "amount": 1}]
    assert done.json["rejected"] == 2
