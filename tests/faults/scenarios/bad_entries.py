"""Entries with which something is wrong, among good ones."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

from countersink.counting.apply.dead import MOST_ROWS
from countersink.stream.entry import VERSION, new_entry_id
from tests.faults.scenarios.worker_deaths import Point, killed_at
from tests.faults.stage import ACKNOWLEDGE, Stage
from tests.support.oracle import Oracle
from tests.support.proxies import Phase
from tests.support.traffic import FIRST_MINUTE, add, now_ms

YEAR_MS = 365 * 24 * 3600 * 1000
GOOD_ROW = ["views", "good", FIRST_MINUTE, 1]
ROWS_OF_A_FLOOD = 1_000
Case = tuple[Mapping[str, str | bytes | int], int, list[tuple[str, int, str]]]
"""Fields of an entry, how many of its rows are good, and the dead rows to expect of it."""


def bad_entries_among_good_ones(stage: Stage) -> None:
    """Each bad entry or row ends in the dead letters with its reason; all the others count."""
    now = now_ms(stage.redis)
    with Oracle(stage.mysql_url) as oracle:
        watermark = int(oracle.rows("SELECT pruned_before FROM control")[0][0])
    cases = _whole_entries(now, watermark) + _single_rows(now)
    stage.random.shuffle(cases)
    expected: list[tuple[str, int, str]] = []
    for fields, good_rows, reasons in cases:
        stage.send(1)
        add(stage.redis, fields)
        stage.faults["bad entry"] += 1
        stage.traffic.count([("views", "good", FIRST_MINUTE, 1)] * good_rows)
        expected += reasons
    stage.finish("bad entries")
    with Oracle(stage.mysql_url) as oracle:
        found = oracle.rows("SELECT LOWER(HEX(entry_id)), position, reason FROM dead_row")
    known = {entry for entry, _, _ in expected}
    assert sorted(row for row in found if row[0] in known) == sorted(expected)


def entries_without_id(stage: Stage) -> None:
    """What any client with JSON can send: the id is made from the entry itself; workers die after
    COMMIT and before the acknowledgement.
    """

    def send_some() -> None:
        for _ in range(10):
            rows = stage.traffic.rows(5)
            stage.traffic.count(rows)
            add(stage.redis, {"rows": json.dumps(rows), "note": "no id"})

    killed_at(stage, [Point("commit", Phase.AFTER), Point(ACKNOWLEDGE, Phase.BEFORE)], send_some)
    stage.finish("entries without id, workers that die")


def floods_and_deaths(stage: Stage) -> None:
    """More dead rows than are kept, and workers that die: each is kept or counted, once."""
    counter = f"flood{stage.random.getrandbits(32)}"
    points = [*product(("dead_group", "dead", "commit"), Phase), (ACKNOWLEDGE, Phase.BEFORE)]
    sent = 2 * len(points) * ROWS_OF_A_FLOOD

    def flood() -> None:
        for _ in range(2):
            at = now_ms(stage.redis)
            rows = json.dumps([(counter, "k", -1, 1)] * ROWS_OF_A_FLOOD)
            add(stage.redis, {"v": 1, "id": new_entry_id(at), "at": at, "rows": rows})
        stage.send(3)

    killed_at(stage, [Point(*point) for point in points], flood, batch_entries=1)
    stage.faults["dead rows in a flood"] += sent
    stage.finish("a flood of dead rows, workers that die")
    assert sent > MOST_ROWS
    with Oracle(stage.mysql_url) as oracle:
        ((kept,),) = oracle.rows(f"SELECT COUNT(*) FROM dead_row WHERE counter = '{counter}'")
        groups = oracle.rows(f"SELECT not_kept FROM dead_group WHERE counter = '{counter}'")
    assert kept == MOST_ROWS
    assert groups == [(sent - MOST_ROWS,)]


def _whole_entries(now: int, watermark: int) -> list[Case]:
    """Entries that fail as a whole, or seem to."""
    rows = json.dumps([GOOD_ROW])
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"v": VERSION + 1, "rows": rows}, 0, "newer_version"),
        ({"v": 1, "rows": rows[:-4]}, 0, "bad_entry"),
        ({"v": 1, "rows": "[" * 100_000}, 0, "bad_entry"),
        ({"v": 1, "rows": b"\xff\xfe"}, 0, "bad_entry"),
        ({"v": 1, "rows": "[" + " " * (5 << 20) + "]"}, 0, "too_large"),
        ({"v": 1, "at": "yesterday", "rows": rows}, 0, "bad_entry"),
        ({"v": 1, "rows": rows, "colour": "blue", "": ""}, 1, ""),  # unknown fields: of no account
        ({"v": 1, "rows": "[]"}, 0, ""),
        ({"v": 1, "at": now + YEAR_MS, "rows": rows}, 1, ""),  # a producer's clock a year off
    ]
    past = {"v": 1, "at": now - YEAR_MS, "rows": rows}
    cases.append((past, 0, "too_old") if watermark > now - YEAR_MS else (past, 1, ""))
    made: list[Case] = []
    for fields, good, reason in cases:
        entry = {"id": new_entry_id(now), "at": now, **fields}
        made.append((entry, good, [(entry["id"], -1, reason)] if reason else []))
    return made


def _single_rows(now: int) -> list[Case]:
    """Entries of three rows, of which the middle one is bad."""
    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    cases: list[tuple[Any, str]] = [
        (["", "k", 1, 1], "bad_counter"),
        ([["nested"], "k", 1, 1], "bad_counter"),
        (["views", "\ud800", 1, 1], "bad_key"),
        (["views", "k", 10**12, 1], "bad_minute"),
        (["views", "k", 1, 2**63], "bad_amount"),
        (["views", "k", 1, 1e300], "bad_amount"),
        (None, "not_a_row"),
        (nested, "not_a_row"),
    ]
    made: list[Case] = []
    for row, reason in cases:
        entry_id = new_entry_id(now)
        rows = json.dumps([GOOD_ROW, row, GOOD_ROW])
        made.append(({"v": 1, "id": entry_id, "at": now, "rows": rows}, 2, [(entry_id, 1, reason)]))
    return made
