"""Different visitors by backfill: each counted line adds its visitor to the sketches of the cells
that it is counted in, once and in one transaction, hashed with the salt of its time.

The oracle keeps a set of hashes for each (bucket, key), worked out apart from what is tested.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from countersink.backfill.count import read_ahead
from countersink.backfill.counter_column import exported
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import BackfillReport, Progress
from countersink.backfill.undo import undo
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply import cells
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session
from countersink.store.counters.catalog import load
from countersink.store.sessions import open_tables
from countersink.store.verify import open_session, verify
from countersink.store.visitors import salts
from countersink.store.visitors.sketch import SketchUnion
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    add,
    details,
    options,
    outcomes,
    query,
    rejected,
    rejects_in,
    require_verified,
    run_of,
    set_counter,
    small_chunks,
    totals,
    write,
)
from tests.store.visitors.sightings import hashed, salt_at, seen_entry, unions
from tests.support.examples import MANY
from tests.support.sketches import registers, sketch_of

HOST_AND_AGENT = ("host", "agent")
CSV: dict[str, Any] = {"input_format": "csv", "time_column": "at", "key_column": "page"}
VISITS = 1_000 if MANY else 200
FORGOTTEN = "the salt of its time was forgotten"

Members = dict[tuple[int, str], set[bytes]]
"""(label of the bucket, key) → hashes."""


class Visit(NamedTuple):
    """A line of a log."""

    at: datetime = NOON
    page: str = "/"
    host: str = "192.0.2.1"
    agent: str = "curl/8.0"

    @property
    def minute(self) -> int:
        return int(self.at.timestamp()) // 60

    def line(self) -> bytes:
        when = f"{self.at:%d/%b/%Y:%H:%M:%S %z}"
        request = f'"GET {self.page} HTTP/1.1" 200 5 "-" "{self.agent}"'
        return f"{self.host} - - [{when}] {request}\n".encode()

    def row(self) -> str:
        return f"{self.at:%Y-%m-%dT%H:%M:%SZ},{self.page},{self.host},{self.agent}\n"


def log(path: Path, visits: Iterable[Visit]) -> Path:
    return write(path, b"".join(visit.line() for visit in visits))


def csv(path: Path, visits: Iterable[Visit]) -> Path:
    return write(path, ("at,page,who,agent\n" + "".join(v.row() for v in visits)).encode())


def some_visits(draw: random.Random, number: int, *, hosts: int = 40, days: int = 3) -> list[Visit]:
    """Visits at random times, no line twice in a row of others."""
    pages = ("/", "/a", "/b?x=1", "/é", "/rare")
    return [
        Visit(
            NOON + timedelta(seconds=draw.randrange(days * 86_400)),
            draw.choices(pages, (8, 4, 2, 2, 1))[0],
            f"192.0.2.{draw.randrange(hosts)}",
            draw.choice(("curl/8.0", "Mozilla/5.0 (X11; é)")),
        )
        for _ in range(number)
    ]


def count(mysql_url: str, *sources: Path, **given: Any) -> BackfillReport:
    return add(mysql_url, *sources, **{"visitor": HOST_AND_AGENT, **given})


def expected(
    session: Session, visits: Iterable[Visit], counter: str = COUNTER, *, one_field: bool = False
) -> Members:
    """Who is to be in which sketch."""
    catalog = load(session)
    known: dict[int, bytes] = {}
    found: Members = defaultdict(set)
    for visit in visits:
        if visit.minute not in known:
            _, known[visit.minute] = salt_at(session, counter, visit.minute)
        who = visit.host if one_field else f"{visit.host} {visit.agent}"
        place = catalog.bucket(counter, visit.minute), visit.page.partition("?")[0]
        found[place].add(hashed(who, known[visit.minute]))
    return found


def require(mysql_url: str, wanted: Members, counter: str = COUNTER) -> None:
    """The sketches hold these members, register by register, and nothing else; verify agrees."""
    require_verified(mysql_url)
    with open_tables(mysql_url) as session:
        found = unions(session, counter)
    assert found.keys() == wanted.keys()
    for place, hashes in wanted.items():
        assert registers(found[place].sketch()) == registers(sketch_of(b"".join(hashes))), place


def require_visits(
    mysql_url: str, visits: Iterable[Visit], counter: str = COUNTER, **given: Any
) -> None:
    """The sketches hold the visitors of these lines, and nobody else."""
    with open_tables(mysql_url) as session:
        wanted = expected(session, visits, counter, **given)
    require(mysql_url, wanted, counter)


def hashes_in(union: SketchUnion) -> list[bytes]:
    """The hashes of a small union."""
    sketch = union.sketch()
    assert sketch[:1] == b"\x01"
    return [sketch[at : at + 8] for at in range(1, len(sketch), 8)]


def forget_salts(mysql_url: str) -> None:
    """All salts are forgotten, as a worker does it once they have ended."""
    query(mysql_url, "UPDATE visitor_salt SET salt = NULL")


@pytest.fixture
def unique(mysql_url: str) -> str:
    """A counter of different visitors by the day; its database."""
    set_counter(mysql_url, salt_days=0)
    return mysql_url


@pytest.fixture
def daily(mysql_url: str) -> str:
    """One whose salts last a day."""
    set_counter(mysql_url, salt_days=1)
    return mysql_url


@pytest.mark.random
@pytest.mark.parametrize(
    ("resolution", "zone"),
    [("day", "America/St_Johns"), ("hour", "Asia/Tokyo"), ("quarter", "UTC"), ("minute", "UTC")],
)
def test_random_visits_are_in_the_sketches_of_their_buckets_once(
    mysql_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resolution: Any,
    zone: str,
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    visits = some_visits(random.Random(seed), VISITS)
    small_chunks(monkeypatch, VISITS // 4)
    set_counter(mysql_url, resolution=resolution, time_zone=zone, salt_days=0)
    source = log(tmp_path / "a.log", visits)
    report = count(mysql_url, source)
    assert (report.state, report.rejected) == ("done", 0)
    assert report.counted == report.amount == VISITS
    with open_tables(mysql_url) as session:
        wanted = expected(session, visits)
        catalog = load(session)
    require(mysql_url, wanted)
    hits = Counter((catalog.bucket(COUNTER, v.minute), v.page.partition("?")[0]) for v in visits)
    assert sorted(totals(mysql_url).values()) == sorted(hits.values())
    assert outcomes(count(mysql_url, source)) == ["known"]
    require(mysql_url, wanted)
    compact(lambda: open_mover(mysql_url), CompactOptions())
    require(mysql_url, wanted)
    with Store(mysql_url) as store:
        every = {(v.host, v.agent) for v in visits}
        assert store.totals.unique(COUNTER).total == len(every)


@pytest.mark.servers("mariadb", "mysql")
def test_many_visitors_of_a_day_are_an_estimate_of_the_same_registers(
    unique: str, tmp_path: Path
) -> None:
    visits = [
        Visit(NOON + timedelta(seconds=number % 3_600), "/", f"10.0.{number // 250}.{number % 250}")
        for number in range(5_000)
    ]
    first, second = log(tmp_path / "a.log", visits[:3_000]), log(tmp_path / "b.log", visits[3_000:])
    assert count(unique, first).amount == 3_000
    assert count(unique, second).amount == 2_000
    require_visits(unique, visits)
    with Store(unique) as store:
        found = store.totals.unique(COUNTER)
    assert found.estimate
    assert found.low <= found.total <= found.high
    # Five standard errors of 1.15 %: the salt is random, and two are left once in twenty times.
    assert abs(found.total - 5_000) < 0.0575 * 5_000


def test_csv_json_and_access_logs_agree_on_who_a_visitor_is(unique: str, tmp_path: Path) -> None:
    visits = [Visit(host="192.0.2.1"), Visit(host="192.0.2.2"), Visit(host="192.0.2.1", page="/a")]
    rows = [
        {"at": f"{v.at:%Y-%m-%dT%H:%M:%SZ}", "page": v.page, "who": {"ip": v.host}, "ua": v.agent}
        for v in visits
    ]
    ndjson = write(tmp_path / "a.ndjson", "".join(json.dumps(row) + "\n" for row in rows).encode())
    assert count(unique, log(tmp_path / "a.log", visits)).amount == 3
    assert (
        count(unique, csv(tmp_path / "a.csv", visits), **CSV, visitor=("who", "agent")).amount == 3
    )
    json_ones = {"input_format": "ndjson", "time_column": "at", "key_column": "page"}
    assert count(unique, ndjson, **json_ones, visitor=("who.ip", "ua")).amount == 3
    assert sum(totals(unique).values()) == 9
    require_visits(unique, visits)


def test_lines_that_are_left_out_or_rejected_bring_no_visitor(unique: str, tmp_path: Path) -> None:
    kept = Visit(host="192.0.2.1")
    source = write(
        tmp_path / "a.log",
        kept.line() + Visit(page="/x.css", host="192.0.2.9").line() + b"nonsense\n",
    )
    report = count(unique, source, exclude_keys=("*.css",), visitor=("host",))
    assert (report.counted, report.filtered, report.rejected) == (1, 1, 1)
    require_visits(unique, [kept], one_field=True)


def test_breakdowns_and_the_counter_have_the_visitors(unique: str, tmp_path: Path) -> None:
    visits = [Visit(host=f"192.0.2.{n % 5}", page=f"/{n % 3}") for n in range(20)]
    set_counter(unique, dimensions=["page", "agent"], breakdowns=["page"])
    count(
        unique,
        log(tmp_path / "a.log", visits),
        dimensions=(("page", "path"), ("agent", "agent")),
        visitor=("host",),
    )
    with open_tables(unique) as session:
        all_of_them = [visit._replace(page="") for visit in visits]
        require(unique, expected(session, all_of_them, one_field=True))
        by_page = expected(session, visits, one_field=True)
    require(unique, by_page, f"{COUNTER}#1")
    with Store(unique) as store:
        found = dict(store.totals.unique_by_dimensions(COUNTER, ["page"]))
    assert {page: one.total for page, one in found.items()} == {("/0",): 5, ("/1",): 5, ("/2",): 5}


def test_visitors_of_keys_beyond_the_cap_are_those_of_overflow(unique: str, tmp_path: Path) -> None:
    set_counter(unique, max_keys=1)
    visits = [Visit(), Visit(page="/a", host="192.0.2.2"), Visit(page="/b", host="192.0.2.3")]
    assert count(unique, log(tmp_path / "a.log", visits)).amount == 3
    over = [visits[0], *(visit._replace(page="__overflow__") for visit in visits[1:])]
    require_visits(unique, over)


def test_the_past_has_the_first_salt_as_long_as_it_is_kept(daily: str, tmp_path: Path) -> None:
    visits = [Visit(), Visit(NOON - timedelta(days=400), host="192.0.2.2")]
    assert count(daily, log(tmp_path / "a.log", visits)).amount == 2
    require_visits(daily, visits)


def test_lines_whose_salt_was_forgotten_are_rejected_and_the_others_counted(
    daily: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 3)
    query(daily, "UPDATE visitor_salt SET salt = NULL ORDER BY begins LIMIT 1")
    tomorrow = datetime.now(UTC).replace(hour=12, minute=0) + timedelta(days=1)
    far = tomorrow + timedelta(days=30)
    good = [Visit(tomorrow, host=f"192.0.2.{n}") for n in range(4)]
    visits = [good[0], Visit(), good[1], good[2], good[3], Visit(far), Visit(page="/a")]
    source = log(tmp_path / "a.log", visits)
    dry = count(daily, source, dry_run=True)
    out = tmp_path / "out.ndjson"
    report = count(daily, source, rejects=out)
    for each in dry, report:
        assert (each.counted, each.rejected, each.amount) == (4, 3, 4)
    reasons = {number: reason for number, reason, _ in rejected(daily)}
    assert sorted(reasons) == [2, 6, 7]
    assert FORGOTTEN in reasons[2]
    assert FORGOTTEN in reasons[7]
    assert "not made yet" in reasons[6]
    require_visits(daily, good)
    assert outcomes(count(daily, source)) == ["known"]


def test_without_any_salt_every_line_is_rejected(daily: str, tmp_path: Path) -> None:
    forget_salts(daily)
    report = count(daily, log(tmp_path / "a.log", [Visit(), Visit(page="/a")]))
    assert (outcomes(report), report.rejected, report.amount) == (["rejected"], 2, 0)
    assert totals(daily) == {}
    require(daily, {})


def test_a_salt_that_ends_within_a_bucket_is_told_by_the_minute(
    mysql_url: str, tmp_path: Path
) -> None:
    """As where another number of days was given to the salts of the counter."""
    set_counter(mysql_url, salt_days=1)
    ends = Visit(NOON + timedelta(minutes=30)).minute
    query(mysql_url, "DELETE FROM visitor_salt")
    for begins, end, salt in (salts.BEGINNING, ends, b"1" * 16), (ends, None, b"2" * 16):
        query(
            mysql_url,
            "INSERT INTO visitor_salt (counter, begins, ends, salt) VALUES (%s, %s, %s, %s)",
            *(COUNTER, begins, end, salt),
        )
    visits = [Visit(NOON + timedelta(minutes=29)), Visit(NOON + timedelta(minutes=30))]
    count(mysql_url, log(tmp_path / "a.log", visits))
    with open_tables(mysql_url) as session:
        wanted = expected(session, visits)
    assert [len(hashes) for hashes in wanted.values()] == [2]
    require(mysql_url, wanted)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(6 if MANY else 2))
def test_a_log_that_grows_by_bytes_while_salts_are_forgotten_and_runs_undone(
    daily: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each line is counted or rejected in the end, and whoever was counted is in the sketches."""
    draw = random.Random(seed)
    small_chunks(monkeypatch, draw.randrange(3, 20))
    visits = some_visits(draw, 60)
    with open_tables(daily) as session:
        every = expected(session, visits, one_field=True)
        of_each = [expected(session, [visit], one_field=True) for visit in visits]
    text = b"".join(visit.line() for visit in visits)
    # Often just before a newline, where a line counts without it.
    ends = [at for at in range(len(text)) if text[at : at + 1] == b"\n"]
    cuts = sorted({*draw.sample(ends, 6), *draw.sample(range(200, len(text)), 6), len(text)})
    forgotten_at = draw.choice([None, *cuts])
    # An agent that is cut off may be another one; whoever was counted stays.
    asked: dict[str, Any] = {"input_format": "combined", "visitor": ("host",)}
    source, runs, lines = tmp_path / "a.log", list[int](), dict[int, list[tuple[str, int]]]()

    def add_some() -> BackfillReport:
        out = tmp_path / f"{len(lines)}.rejects"
        report = count(daily, source, **asked, rejects=out)
        lines[run_of(report)] = rejects_in(out)
        return report

    for cut in cuts:
        write(source, text[:cut])
        if cut == forgotten_at:
            forget_salts(daily)
        report = add_some()
        assert report.state == "done"
        runs.append(run_of(report))
        if draw.random() < 0.3:
            last = [runs.pop() for _ in range(draw.randrange(len(runs)) + 1)]
            undo(daily, *last)
            runs.append(run_of(add_some()))
    # Of a line that two chunks have the later one decides.
    decides: dict[int, int] = {}
    for first, run in query(daily, "SELECT first_line, run FROM backfill_chunk ORDER BY start_at"):
        decides |= dict.fromkeys(range(first, len(visits) + 1), run)
    gone = {number for number, run in decides.items() if (str(source), number) in lines[run]}
    assert query(daily, "SELECT SUM(rejected) FROM backfill_chunk") == [(len(gone),)]
    counted = [visit for number, visit in enumerate(visits, 1) if number not in gone]
    hits = Counter((f"{visit.at:%Y-%m-%d}", visit.page.partition("?")[0]) for visit in counted)
    assert totals(daily) == dict(hits)
    assert not gone or forgotten_at is not None
    with open_tables(daily) as session:
        found = {place: set(hashes_in(union)) for place, union in unions(session, COUNTER).items()}
    for number, one in enumerate(of_each, 1):
        for place, hashes in one.items():
            assert number in gone or hashes <= found[place]
    assert all(hashes <= every[place] for place, hashes in found.items())


def test_lines_counted_without_visitors_are_not_counted_twice_for_them(
    unique: str, tmp_path: Path
) -> None:
    visits = [Visit(NOON + timedelta(seconds=n), host=f"192.0.2.{n}") for n in range(30)]
    source = log(tmp_path / "a.log", visits)
    run = run_of(add(unique, source))
    report = count(unique, source)
    assert report.state == "failed"
    assert "now --visitor host,agent" in details(report)
    longer = log(tmp_path / "b.log", [Visit(page="/new"), *visits, Visit(page="/more")])
    assert "--count-repeats" in details(count(unique, longer))
    require(unique, {})
    undo(unique, run)
    assert count(unique, source).amount == 30
    require_visits(unique, visits)


def test_sketches_that_were_deleted_are_missed_after_an_undo_as_well(
    unique: str, tmp_path: Path
) -> None:
    run = run_of(count(unique, log(tmp_path / "a.log", some_visits(random.Random(3), 30))))
    query(unique, "DELETE FROM visitor_slot LIMIT 1")
    undo(unique, run)
    with open_session(unique) as session:
        assert {one.problem for one in verify(session).differences} == {"sketch"}


def test_without_the_library_a_chunk_of_many_visitors_is_not_counted(
    unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 200)
    visits = [Visit(host=f"192.0.{n // 250}.{n % 250}") for n in range(600)]
    source = log(tmp_path / "a.log", visits)
    monkeypatch.setattr(cells, "slot_of", lambda session: cells.FIRST_SLOT)
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "datasketches", None)
        report = count(unique, source)
        assert report.state == "failed"
        assert "pip install 'countersink[sketches]'" in details(report)
    assert totals(unique) == {(DAY, "/"): 200}
    require_visits(unique, visits[:200])
    assert count(unique, source).amount == 2 * VISITS
    require_visits(unique, visits)


@pytest.mark.servers("mariadb", "mysql")
def test_lines_of_a_sketch_that_is_damaged_are_rejected(
    unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "slot_of", lambda session: cells.FIRST_SLOT)
    count(unique, log(tmp_path / "a.log", [Visit()]))
    query(unique, "UPDATE visitor_slot SET sketch = X'01'")
    both = [Visit(host="192.0.2.2"), Visit(page="/a", host="192.0.2.3")]
    report = count(unique, log(tmp_path / "b.log", both))
    assert (report.counted, report.rejected) == (1, 1)
    ((number, reason, _),) = rejected(unique)
    assert (number, "are not what was written" in reason) == (1, True)
    found = query(unique, "SELECT counter_key, amount FROM counter_slot ORDER BY counter_key")
    assert found == [(b"/", 1), (b"/a", 1)]


@pytest.mark.servers("mariadb", "mysql")
def test_lines_of_a_damaged_sketch_of_a_breakdown_are_rejected_as_a_whole(
    unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "slot_of", lambda session: cells.FIRST_SLOT)
    set_counter(unique, dimensions=["page", "agent"], breakdowns=["page", "agent"])
    recipe = {**CSV, "key_column": "", "dimensions": (("page", "page"), ("agent", "agent"))}
    recipe["visitor"] = ("who",)
    count(unique, csv(tmp_path / "a.csv", [Visit()]), **recipe)
    query(unique, "UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = '/'")
    visits = [
        Visit(NOON + timedelta(seconds=n), f"/{n % 7}", f"192.0.2.{n % 9}") for n in range(2000)
    ]
    visits[1200] = Visit(agent="wget")
    report = count(unique, csv(tmp_path / "b.csv", visits), **recipe)
    assert (report.counted, report.rejected) == (1999, 1)
    assert [number for number, _, _ in rejected(unique)] == [1202]
    sums = "SELECT counter, SUM(amount) FROM counter_slot GROUP BY counter ORDER BY counter"
    own = [COUNTER, f"{COUNTER}#1", f"{COUNTER}#2"]
    assert query(unique, sums) == [(name, 2000) for name in own]
    agents = query(unique, f"SELECT counter_key FROM counter_slot WHERE counter = '{own[2]}'")
    assert agents == [(b"curl/8.0",)]


@pytest.mark.servers("mariadb", "mysql")
def test_child_processes_read_the_visitors_of_chunks(
    unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    monkeypatch.setattr(read_ahead, "FIRST", 1)
    visits = some_visits(random.Random(2), 300)
    seen: list[Progress] = []
    source = log(tmp_path / "a.log", visits)
    report = count(unique, source, jobs=2, on_progress=seen.append)
    assert (report.amount, report.notices) == (300, ())
    assert max(one.jobs for one in seen) == 2
    require_visits(unique, visits)


def test_an_export_of_several_counters(unique: str, tmp_path: Path) -> None:
    text = f"at,page,who,c\n{DAY}T12:00Z,/,ann,{COUNTER}\n{DAY}T12:00Z,/,ann,others\n"
    source = write(tmp_path / "a.csv", text.encode())
    given = {**CSV, "visitor": ("who",), "counter_column": "c"}
    found = exported(unique, options(source, **given))
    assert (found.counters, found.stray_lines) == ((COUNTER,), 1)
    assert "others does not count different visitors" in found.strays[0]
    assert count(unique, source, **given).amount == 1
    require_visits(unique, [Visit(host="ann")], one_field=True)


@pytest.mark.parametrize("keep", ["day=31d", "hour=90d"])
def test_live_ones_and_those_of_logs_are_the_same_visitors_before_and_after_roll_up(
    unique: str, applier: Applier, session: Session, tmp_path: Path, keep: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    draw = random.Random(seed)
    set_counter(unique, resolution="hour", keep=keep)
    visits = some_visits(draw, 600, hosts=30, days=5)
    parts = [visits[number::3] for number in range(3)]
    live = [(COUNTER, v.page.partition("?")[0], v.minute, f"{v.host} {v.agent}") for v in parts[0]]
    by_day: dict[date, set[str]] = defaultdict(set)
    by_key: dict[str, set[str]] = defaultdict(set)

    def note(some: Iterable[Visit]) -> None:
        for visit in some:
            by_day[visit.at.date()].add(f"{visit.host} {visit.agent}")
            by_key[visit.page.partition("?")[0]].add(f"{visit.host} {visit.agent}")

    applier.apply([seen_entry(session, live)])
    note(parts[0])
    for number in (1, 2):
        report = count(unique, log(tmp_path / f"{number}.log", parts[number]))
        assert report.amount == len(parts[number])
        note(parts[number])
        roll_up(partial(open_mover, unique))
        require_verified(unique)
        with Store(unique) as store:
            everybody = set().union(*by_day.values())
            assert store.totals.unique(COUNTER).total == len(everybody)
            assert store.totals.total(COUNTER) == sum(map(len, parts[: number + 1]))
            keys = {key: one.total for key, one in store.totals.unique_by_key(COUNTER)}
            assert keys == {key: len(who) for key, who in by_key.items()}
            if keep == "hour=90d":
                days = {day: one.total for day, one in store.totals.unique_by(COUNTER, "day")}
                assert days == {day: len(who) for day, who in by_day.items()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"counter": "plain"}, "plain does not count different visitors"),
        ({"visitor": ("nobody",)}, "nobody"),
        ({**CSV, "visitor": ("who",), "amount_column": "n"}, "leave out --amount-column"),
        ({"mode": "reconcile"}, "--visitor goes with --mode add"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_counted(
    unique: str, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    source = log(tmp_path / "a.log", [Visit()])
    with pytest.raises(BackfillError, match=said):
        count(unique, source, **given)
    assert totals(unique) == {}


def test_a_column_that_is_not_there(unique: str, tmp_path: Path) -> None:
    report = count(unique, csv(tmp_path / "a.csv", [Visit()]), **CSV, visitor=("nobody",))
    assert report.state == "failed"
    assert "no column 'nobody'" in details(report)
    assert totals(unique) == {}
