"""`/v1/counters` and `/v1/counters/{counter}`: which counters there are, and how they count."""

import json
from contextlib import closing
from datetime import date, timedelta
from functools import partial

from countersink.database.sessions import open_tables
from tests.cli.command import call
from tests.support.app_connection import open_app
from tests.support.roll_up import roll_up
from tests.web.endpoints.test_totals import count, document, refused, rows
from tests.web.serving import Web


def test_counters_at_a_glance(web: Web) -> None:
    ((now,),) = web.store.snapshot(lambda session: session.query("SELECT UTC_TIMESTAMP()"))
    today = now.date()
    back = timedelta(days=1)
    count(web.producer, (today, "a", 1), (today, "b", 2), (today - 2 * back, "a", 4))
    count(web.producer, (today - 400 * back, "", 8), counter="old")
    web.store.counters.set(
        "zoned", time_zone="Pacific/Kiritimati", better="down", resolution="quarter"
    )
    web.apply()
    web.count("zoned", amount=16)
    found = {row["counter"]: row for row in rows(web, "/v1/counters", days=3)}
    assert list(found) == ["old", "views", "zoned"]
    if found["views"]["days"][-1]["day"] == today.isoformat():  # not at midnight
        assert [day["total"] for day in found["views"]["days"]] == [4, 0, 3]
        assert found["views"]["today"] == 3
    assert found["old"] | {"days": []} == {
        "counter": "old",
        "time_zone": "UTC",
        "resolution": "day",
        "better": "up",
        "total": 8,
        "today": 0,
        "days": [],
    }
    assert found["zoned"]["time_zone"] == "Pacific/Kiritimati"
    assert found["zoned"]["better"] == document(web, "/v1/counters/zoned")["better"] == "down"
    assert sum(day["total"] for day in found["zoned"]["days"]) == 16
    without = rows(web, "/v1/counters", days=0, totals="false")
    assert [(row["total"], row["today"], row["days"]) for row in without] == [(None,) * 3] * 3


def test_totals_at_a_glance_are_those_of_the_rows_whoever_counted(web: Web) -> None:
    store, url = web.store, web.options.mysql_url
    long_ago = date(2024, 5, 17)
    count(web.producer, (long_ago, "a", 1), (long_ago, "b", -7), counter="rolled_up")
    count(web.producer, (long_ago, "a", 5), counter="shared")
    web.apply()
    with closing(open_app(url)) as app:
        store.increment(app, "shared", "a", 20)  # in the ledger only once it is compacted
        store.increment(app, "own", "", 300)
        store.delete(app, "rolled_up", "a")
        app.commit()
    store.counters.set("rolled_up", keep="day=30d")
    roll_up(partial(open_tables, url), rows=100)
    assert document(web, "/v1/counters/rolled_up")["rolled_up_to"].keys() == {"month"}
    totals = {row["counter"]: row["total"] for row in rows(web, "/v1/counters", days=0)}
    assert totals == {"own": 300, "rolled_up": -7, "shared": 25}
    assert totals == {name: store.totals.total(name) for name in totals}


def test_a_time_zone_that_this_machine_does_not_know_harms_its_counter_alone(web: Web) -> None:
    for name in ("good", "zoned"):
        web.producer.increment(name)
    web.store.counters.set("zoned", time_zone="America/New_York", resolution="hour")
    web.apply()
    with open_tables(web.options.mysql_url) as session:
        session.execute("UPDATE counter SET time_zone = 'America/Atlantis' WHERE name = 'zoned'")
        session.execute("UPDATE control SET catalog_version = catalog_version + 1")
    good, zoned = rows(web, "/v1/counters", days=2)
    assert (good["total"], len(good["days"])) == (1, 2)
    assert (zoned["total"], zoned["days"], zoned["today"]) == (1, None, None)
    assert "tzdata" in refused(web, "/v1/counters/zoned/hourly", 500)


def test_the_settings_of_a_counter(web: Web) -> None:
    count(web.producer, (date(2026, 10, 18), "", 1), counter="clicks")
    web.apply()
    web.store.counters.set("clicks", keep="day=90d")
    settings = document(web, "/v1/counters/clicks")
    assert (settings["time_zone"], settings["keep"]) == ("UTC", {"day": "90d"})
    shown = call(
        "counter",
        "show",
        "clicks",
        "--format",
        "json",
        COUNTERSINK_MYSQL_URL=web.options.mysql_url,
    )
    assert json.loads(shown.out) == settings
    assert "no such parameter" in refused(web, "/v1/counters/clicks", 422, days=1)


def test_all_counters_are_sorted_by_size_and_change_page_by_page(web: Web) -> None:
    ((now,),) = web.store.snapshot(lambda session: session.query("SELECT UTC_TIMESTAMP()"))
    today, back = now.date(), timedelta(days=1)
    oracle: dict[str, tuple[int, int, int, int]] = {}  # today, week, before, long ago
    for number in range(130):
        one = (number * 37 % 101, number * 53 % 17, number * 29 % 13, number * 71 % 1009)
        name = f"c{number:03}"
        oracle[name] = one
        days = (today, today - 2 * back, today - 9 * back, today - 90 * back)
        count(
            web.producer, *((day, "a", n) for day, n in zip(days, one, strict=True)), counter=name
        )
    web.store.counters.set("c007", time_zone="Pacific/Kiritimati", resolution="quarter")
    web.apply()

    def listed(sort: str, reverse: str = "false", **more: int) -> list[str]:
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            page = document(
                web,
                "/v1/counters",
                sort=sort,
                reverse=reverse,
                after=after,
                limit=50,
                days=1,
                **more,
            )
            assert page["counters"] == 130
            names += [row["counter"] for row in page["rows"]]
            after = page["next"]
        return [name for name in names if name != "c007"]  # its days are others

    def change(name: str) -> tuple[float, int] | None:
        _, week, before, _ = oracle[name]
        if before:
            return week / before - 1, week
        return (float("inf"), week) if week else None

    names = sorted(oracle.keys() - {"c007"})
    by_total = sorted(names, key=lambda name: -sum(oracle[name]))
    assert listed("total") == by_total
    assert listed("today") == sorted(names, key=lambda name: -oracle[name][0])
    have = [name for name in names if change(name) is not None]
    none = [name for name in names if change(name) is None]
    assert none
    for reverse in (False, True):
        ordered = sorted(have, key=lambda name: change(name) or (), reverse=not reverse)
        assert listed("change", str(reverse).lower()) == ordered + none
    # Of 30 days, all that was counted in them is new.
    recent = {name: sum(oracle[name][1:3]) for name in names if sum(oracle[name][1:3])}
    ordered = sorted(recent, key=lambda name: recent[name], reverse=True)
    assert listed("change", change=30)[: len(recent)] == ordered
    for length, expected in (
        (7, {name: list(oracle[name][1:3]) for name in names}),
        (30, {name: [sum(oracle[name][1:3]), 0] for name in names}),
        (90, {name: [sum(oracle[name][1:]), 0] for name in names}),
    ):
        shown = rows(web, "/v1/counters", change=length, limit=130)
        changes = {row["counter"]: row["change"] for row in shown}
        assert changes == expected | {"c007": changes["c007"]}
    assert "change" not in rows(web, "/v1/counters", limit=1)[0]
    assert listed("counter") == names
    assert listed("counter", "true") == names[::-1]
    page = document(web, "/v1/counters", search="c01")
    assert [row["counter"] for row in page["rows"]] == [n for n in names if "c01" in n]
    assert page["next"] is None
    found = rows(web, "/v1/counters", sort="total", search="c01", limit=3)
    assert [row["counter"] for row in found] == [n for n in by_total if "c01" in n][:3]
    assert "start again" in refused(web, "/v1/counters", 422, sort="total", after="nobody")
