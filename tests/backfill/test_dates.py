"""Dates without a time: a date is a day of the counter, whatever its zone and resolution."""

from datetime import date
from typing import Any

import pytest

from countersink.store import Store
from tests.backfill.helpers import COUNTER, Logs

DAYS = {"2026-03-28": 1, "2026-03-29": 2, "2026-03-30": 3}
CSV = {"input_format": "csv", "key_column": "key", "time_column": "day"}


@pytest.mark.parametrize(
    ("zone", "resolution"),
    [
        ("UTC", "day"),
        ("Europe/Berlin", "hour"),
        ("Pacific/Kiritimati", "day"),
        ("America/Nome", "quarter"),
    ],
)
def test_a_date_stays_its_day(logs: Logs, store: Store, zone: str, resolution: str) -> None:
    logs.set_counter(time_zone=zone, resolution=resolution)
    head = "day,key,total\n"
    iso = "".join(f"{day},a,{n}\n" for day, n in DAYS.items())
    german = "".join(f"{day[8:]}.{day[5:7]}.{day[:4]},b,{n}\n" for day, n in DAYS.items())
    objects = "".join(f'{{"day":"{day}","key":"c","total":{n}}}\n' for day, n in DAYS.items())
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "a": (head + iso, {}),
        "b": (head + german, {"time_format": "%d.%m.%Y"}),
        "c": (objects, {"input_format": "ndjson", "time_zone": "Europe/Berlin"}),
    }
    for key, (content, given) in cases.items():
        asked = {**CSV, "amount_column": "total", **given}
        source = logs.write(key, content.encode())
        assert logs.add(source, dry_run=True, **asked).by_day == tuple(DAYS.items())
        assert logs.add(source, **asked).state == "done"
        found = store.totals.daily(COUNTER, key=key)
        assert found == [(date.fromisoformat(day), n) for day, n in DAYS.items()]


def test_a_date_before_all_time_is_rejected(logs: Logs) -> None:
    source = logs.write("a.csv", b"day,key\n1969-12-31,a\n2026-02-30,a\n1970-01-01,a\n")
    done = logs.add(source, dry_run=True, **CSV)
    assert (done.by_day, done.rejected) == ((("1970-01-01", 1),), 2)
