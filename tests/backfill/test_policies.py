"""Chunks and policies that change while they are read."""

import pytest

from countersink.store.errors import Refused
from countersink.store.sessions import open_tables
from tests.backfill.helpers import COUNTER, NOON, Logs, add, line, log, long_log
from tests.store.policy_rows import put_policies
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.proxies.rules import Request

NOON_MINUTE = int(NOON.timestamp()) // 60


@pytest.mark.parametrize("planned", [False, True])
def test_policies_that_change_between_reading_and_counting_are_in_force(
    logs: Logs, planned: bool
) -> None:
    """They are locked only after it was read."""
    file = logs.write("a.log", log(*["/head"] * 20) + long_log(300, keys=1))
    if planned:
        run = logs.add(file).run
        assert run is not None
        logs.undo(run)
    changes: list[str] = []

    def locks_policies(request: Request, reply: bytes) -> bool:
        settled = logs.query("SELECT 1 FROM backfill_source")
        return bool(settled) and request.text.startswith("SELECT pruned_before")

    def change(request: Request) -> None:
        changes.append(request.text)
        with open_tables(logs.url) as session:
            put_policies(session, COUNTER, [(0, "UTC", "day"), (NOON_MINUTE + 1, "UTC", "hour")])

    with MySQLProxy.to(logs.url) as proxy:
        proxy.when("control", Phase.BEFORE, Deed.PASS, call=change, where=locks_policies)
        report = add(proxy.url(logs.url), file)
        asked = proxy.kinds().count("policy")
    assert len(changes) == 1
    assert asked >= 2
    assert (report.state, report.counted) == ("done", 320)
    assert {cell: amount for cell, amount in logs.totals().items() if amount} == {
        ("2026-03-14", "/0"): 60,
        ("2026-03-14", "/head"): 20,
        ("2026-03-14 12:00:01", "/0"): 240,
    }


@pytest.mark.timeout(60)
def test_a_time_zone_that_is_unknown_here_matters_to_its_own_lines_only(logs: Logs) -> None:
    with open_tables(logs.url) as session:
        put_policies(
            session, COUNTER, [(0, "UTC", "day"), (NOON_MINUTE + 1, "Mars/Olympus", "day")]
        )
    before = log(*["/head"] * 20)
    malformed = line("x", minutes=2)
    report = logs.add(logs.write("a.log", before + malformed))
    assert (report.state, report.counted, report.rejected) == ("done", 20, 1)
    with pytest.raises(Refused, match="Mars/Olympus"):
        logs.add(logs.write("b.log", before + line("/b", minutes=2)))
    assert logs.totals() == {("2026-03-14", "/head"): 20}
