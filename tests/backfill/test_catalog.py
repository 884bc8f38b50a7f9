"""Chunks, and settings of the counter that change while they are read, or are unknown here."""

import pytest

from countersink.store.counters.catalog import SCHEME_COLUMNS
from countersink.store.errors import Refused
from tests.backfill.helpers import (
    DAY,
    Logs,
    line,
    log,
    long_log,
)
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.proxies.rules import Request


def test_a_resolution_that_changes_between_reading_and_counting_is_in_force(logs: Logs) -> None:
    """The catalog is locked only after it was read."""
    file = logs.write("a.log", log(*["/head"] * 20) + long_log(300, keys=1))
    changes: list[str] = []

    def locks_catalog(request: Request, reply: bytes) -> bool:
        holds = any("UPDATE backfill_source" in one.text for one in proxy.seen)
        return "LOCK IN SHARE MODE" in request.text and holds

    def change(request: Request) -> None:
        changes.append(request.text)
        logs.set_counter(resolution="hour")

    with MySQLProxy.to(logs.url) as proxy:
        proxy.when("control", Phase.BEFORE, Deed.PASS, call=change, where=locks_catalog)
        report = logs.through(proxy).add(file)
        loaded = [one for one in proxy.seen if SCHEME_COLUMNS in one.text]
    assert len(changes) == 1
    assert len(loaded) >= 2
    assert (report.state, report.counted) == ("done", 320)
    hour = f"{DAY} 12:00 hour"
    assert {cell: amount for cell, amount in logs.totals().items() if amount} == {
        (hour, "/head"): 20,
        (hour, "/0"): 300,
    }


@pytest.mark.timeout(60)
def test_a_time_zone_that_is_unknown_here_is_no_matter_to_lines_that_count_nothing(
    logs: Logs,
) -> None:
    logs.set_counter(time_zone="Asia/Tokyo")
    logs.query("UPDATE counter SET time_zone = 'Mars/Olympus'")
    malformed = line("x", minutes=2)
    report = logs.add(logs.write("a.log", malformed * 3))
    assert (report.state, report.counted, report.rejected) == ("done", 0, 3)
    with pytest.raises(Refused, match="Mars/Olympus"):
        logs.add(logs.write("b.log", malformed + line("/b", minutes=2)))
    assert logs.totals() == {}
