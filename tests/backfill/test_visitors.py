"""Different visitors by backfill: each counted line adds its visitor to the sketches of the cells
that it is counted in, once and in one transaction, hashed with the salt of its time.

The oracle keeps a set of hashes for each (bucket, key), worked out apart from what is tested.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from countersink.backfill import rejects
from countersink.backfill.count import read_ahead
from countersink.backfill.errors import BackfillError
from countersink.backfill.history import RejectedLine
from countersink.backfill.options import BackfillReport, Progress
from countersink.counting import visitors
from countersink.counting.apply import cells
from countersink.counting.apply.applier import Applier
from countersink.counting.counters.catalog import load
from countersink.counting.visitors import SketchUnion
from countersink.database.errors import Unavailable
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.database.sql import BACKFILL_SLOTS
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.store import Store
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    Logs,
    details,
    outcomes,
    rejects_in,
    run_of,
    write,
    write_old,
)
from tests.counting.visitors.sightings import hashed, salt_at, seen_entry, unions
from tests.support.examples import MANY
from tests.support.roll_up import roll_up
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

    @property
    def key(self) -> str:
        return self.page.partition("?")[0]

    @property
    def who(self) -> str:
        return f"{self.host} {self.agent}"

    def line(self) -> bytes:
        when = f"{self.at:%d/%b/%Y:%H:%M:%S %z}"
        request = f'"GET {self.page} HTTP/1.1" 200 5 "-" "{self.agent}"'
        return f"{self.host} - - [{when}] {request}\n".encode()

    def row(self) -> str:
        return f"{self.at:%Y-%m-%dT%H:%M:%SZ},{self.page},{self.host},{self.agent}\n"


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


@dataclass(frozen=True)
class Visitors(Logs):
    """Logs of visits, and the sketches of a new database."""

    def log(self, name: str, visits: Iterable[Visit]) -> Path:
        return self.write(name, b"".join(visit.line() for visit in visits))

    def csv(self, name: str, visits: Iterable[Visit]) -> Path:
        return self.write(name, ("at,page,who,agent\n" + "".join(v.row() for v in visits)).encode())

    def count(self, *sources: Path, **given: Any) -> BackfillReport:
        return self.add(*sources, **{"visitor": HOST_AND_AGENT, **given})

    def expected(
        self, visits: Iterable[Visit], counter: str = COUNTER, *, one_field: bool = False
    ) -> Members:
        """Who is to be in which sketch."""
        known: dict[int, bytes] = {}
        found: Members = defaultdict(set)
        with open_tables(self.url) as session:
            catalog = load(session)
            for visit in visits:
                if visit.minute not in known:
                    _, known[visit.minute] = salt_at(session, counter, visit.minute)
                who = visit.host if one_field else visit.who
                place = catalog.bucket(counter, visit.minute), visit.key
                found[place].add(hashed(who, known[visit.minute]))
        return found

    def sketches(self, counter: str = COUNTER) -> dict[tuple[int, str], SketchUnion]:
        """The sketches by their places."""
        with open_tables(self.url) as session:
            return unions(session, counter)

    def require(self, wanted: Members, counter: str = COUNTER) -> None:
        """The sketches hold these members, register by register, and nothing else; verify
        agrees."""
        self.require_verified()
        found = self.sketches(counter)
        assert found.keys() == wanted.keys()
        for place, hashes in wanted.items():
            assert registers(found[place].sketch()) == registers(sketch_of(b"".join(hashes))), place

    def require_visits(
        self, visits: Iterable[Visit], counter: str = COUNTER, *, one_field: bool = False
    ) -> None:
        """The sketches hold the visitors of these lines, and nobody else."""
        self.require(self.expected(visits, counter, one_field=one_field), counter)

    def forget_salts(self) -> None:
        """All salts are forgotten, as a worker does it once they have ended."""
        self.query("UPDATE visitor_salt SET salt = NULL")


def hashes_in(union: SketchUnion) -> set[bytes]:
    """The hashes of a small union."""
    sketch = union.sketch()
    assert sketch[:1] == b"\x01"
    return {sketch[at : at + 8] for at in range(1, len(sketch), 8)}


@pytest.fixture
def days() -> int:
    """How long salts last; 0: for ever."""
    return 0


DAILY = pytest.mark.parametrize("days", [1])


@pytest.fixture
def logs(logs: Logs, days: int) -> Visitors:
    """With a counter of different visitors by the day."""
    logs.set_counter(salt_days=days)
    return Visitors(**vars(logs))


@pytest.fixture
def first_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks are counted in one slot, so that they meet each other's sketches."""
    monkeypatch.setattr(cells, "slot_of", lambda session: BACKFILL_SLOTS.start)


@pytest.mark.random
@pytest.mark.parametrize(
    ("resolution", "zone", "keep"),
    [
        ("day", "America/St_Johns", "day=31d"),
        ("hour", "Asia/Tokyo", "day=31d"),
        ("quarter", "UTC", "hour=90d"),
        ("minute", "UTC", "hour=90d"),
    ],
)
def test_random_visits_live_or_of_logs_are_in_the_sketches_of_their_buckets_once(
    logs: Visitors,
    store: Store,
    applier: Applier,
    session: Session,
    resolution: Any,
    zone: str,
    keep: str,
) -> None:
    """Before and after compaction and roll up."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    visits = some_visits(random.Random(seed), VISITS)
    live, first, second = (visits[number::3] for number in range(3))
    logs.small_chunks(VISITS // 10)
    logs.set_counter(resolution=resolution, time_zone=zone)
    applier.apply([seen_entry(session, [(COUNTER, v.key, v.minute, v.who) for v in live])])
    source = logs.log("a.log", first)
    report = logs.count(source)
    assert (report.state, report.rejected) == ("done", 0)
    assert report.counted == report.amount == len(first)
    logs.require_visits(live + first)
    catalog = load(session)
    hits = Counter((catalog.bucket(COUNTER, v.minute), v.key) for v in live + first)
    assert sorted(logs.totals().values()) == sorted(hits.values())
    assert outcomes(logs.count(source)) == ["known"]
    compact(partial(open_mover, logs.url), CompactOptions())
    logs.require_visits(live + first)
    logs.set_counter(keep=keep)
    roll_up(partial(open_mover, logs.url))
    assert logs.count(logs.log("b.log", second)).amount == len(second)
    for _ in range(2):
        logs.require_verified()
        assert store.totals.total(COUNTER) == VISITS
        assert store.totals.unique(COUNTER).total == len({visit.who for visit in visits})
        keys = {key: one.total for key, one in store.totals.unique_by_key(COUNTER)}
        assert keys == numbers_by(visits, lambda visit: visit.key)
        if keep == "hour=90d":
            by_day = {day: one.total for day, one in store.totals.unique_by(COUNTER, "day")}
            assert by_day == numbers_by(visits, lambda visit: visit.at.date())
        roll_up(partial(open_mover, logs.url))


def numbers_by(visits: Iterable[Visit], of: Callable[[Visit], Any]) -> dict[Any, int]:
    """How many different visitors each of them has."""
    found: dict[Any, set[str]] = defaultdict(set)
    for visit in visits:
        found[of(visit)].add(visit.who)
    return {each: len(who) for each, who in found.items()}


def test_csv_json_and_access_logs_agree_on_who_a_visitor_is(logs: Visitors) -> None:
    visits = [Visit(host="192.0.2.1"), Visit(host="192.0.2.2"), Visit(host="192.0.2.1", page="/a")]
    rows = [
        {"at": f"{v.at:%Y-%m-%dT%H:%M:%SZ}", "page": v.page, "who": {"ip": v.host}, "ua": v.agent}
        for v in visits
    ]
    ndjson = logs.write("a.ndjson", "".join(json.dumps(row) + "\n" for row in rows).encode())
    assert logs.count(logs.log("a.log", visits)).amount == 3
    assert logs.count(logs.csv("a.csv", visits), **CSV, visitor=("who", "agent")).amount == 3
    json_ones = {"input_format": "ndjson", "time_column": "at", "key_column": "page"}
    assert logs.count(ndjson, **json_ones, visitor=("who.ip", "ua")).amount == 3
    assert sum(logs.totals().values()) == 9
    logs.require_visits(visits)


def test_lines_that_are_left_out_or_rejected_bring_no_visitor(logs: Visitors) -> None:
    kept = Visit(host="192.0.2.1")
    left_out = Visit(page="/x.css", host="192.0.2.9")
    source = logs.write("a.log", kept.line() + left_out.line() + b"nonsense\n")
    report = logs.count(source, exclude_keys=("*.css",), visitor=("host",))
    assert (report.counted, report.filtered, report.rejected) == (1, 1, 1)
    logs.require_visits([kept], one_field=True)


def test_breakdowns_and_the_counter_have_the_visitors(logs: Visitors) -> None:
    visits = [Visit(host=f"192.0.2.{n % 5}", page=f"/{n % 3}") for n in range(20)]
    logs.set_counter(dimensions=["page", "agent"], breakdowns=["page"])
    dimensions = (("page", "path"), ("agent", "agent"))
    logs.count(logs.log("a.log", visits), dimensions=dimensions, visitor=("host",))
    logs.require_visits([visit._replace(page="") for visit in visits], one_field=True)
    logs.require(logs.expected(visits, one_field=True), f"{COUNTER}#1")
    with Store(logs.url) as store:
        found = dict(store.totals.unique_by_dimensions(COUNTER, ["page"]))
    assert {page: one.total for page, one in found.items()} == {("/0",): 5, ("/1",): 5, ("/2",): 5}


def test_visitors_of_keys_beyond_the_cap_are_those_of_overflow(logs: Visitors) -> None:
    logs.set_counter(max_keys=1)
    visits = [Visit(), Visit(page="/a", host="192.0.2.2"), Visit(page="/b", host="192.0.2.3")]
    assert logs.count(logs.log("a.log", visits)).amount == 3
    over = [visits[0], *(visit._replace(page="__overflow__") for visit in visits[1:])]
    logs.require_visits(over)


@DAILY
def test_the_past_has_the_first_salt_as_long_as_it_is_kept(logs: Visitors) -> None:
    visits = [Visit(), Visit(NOON - timedelta(days=400), host="192.0.2.2")]
    assert logs.count(logs.log("a.log", visits)).amount == 2
    logs.require_visits(visits)


@DAILY
def test_lines_whose_salt_was_forgotten_are_rejected_and_the_others_counted(logs: Visitors) -> None:
    logs.small_chunks(3)
    logs.query("UPDATE visitor_salt SET salt = NULL ORDER BY begins LIMIT 1")
    tomorrow = datetime.now(UTC).replace(hour=12, minute=0) + timedelta(days=1)
    far = tomorrow + timedelta(days=30)
    good = [Visit(tomorrow, host=f"192.0.2.{n}") for n in range(4)]
    visits = [good[0], Visit(), good[1], good[2], good[3], Visit(far), Visit(page="/a")]
    source = logs.log("a.log", visits)
    dry = logs.count(source, dry_run=True)
    out = logs.directory / "out.ndjson"
    report = logs.count(source, rejects=out)
    for each in dry, report:
        assert (each.counted, each.rejected, each.amount) == (4, 3, 4)
    reasons = {one.line: one.reason for one in logs.rejected()}
    assert sorted(reasons) == [2, 6, 7]
    assert FORGOTTEN in reasons[2]
    assert FORGOTTEN in reasons[7]
    assert "does not exist yet" in reasons[6]
    logs.require_visits(good)
    assert outcomes(logs.count(source)) == ["known"]


@DAILY
def test_without_any_salt_every_line_is_rejected(logs: Visitors) -> None:
    logs.forget_salts()
    report = logs.count(logs.log("a.log", [Visit(), Visit(page="/a")]))
    assert (outcomes(report), report.rejected, report.amount) == (["rejected"], 2, 0)
    assert logs.totals() == {}
    logs.require({})


def test_a_salt_that_ends_within_a_bucket_is_told_by_the_minute(logs: Visitors) -> None:
    """As where another number of days was given to the salts of the counter."""
    logs.set_counter(salt_days=1)
    ends = Visit(NOON + timedelta(minutes=30)).minute
    logs.query("DELETE FROM visitor_salt")
    for begins, end, salt in (visitors.BEGINNING, ends, b"1" * 16), (ends, None, b"2" * 16):
        logs.query(
            "INSERT INTO visitor_salt (counter, begins, ends, salt) VALUES (%s, %s, %s, %s)",
            *(COUNTER, begins, end, salt),
        )
    visits = [Visit(NOON + timedelta(minutes=29)), Visit(NOON + timedelta(minutes=30))]
    logs.count(logs.log("a.log", visits))
    wanted = logs.expected(visits)
    assert [len(hashes) for hashes in wanted.values()] == [2]
    logs.require(wanted)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(6 if MANY else 2))
@DAILY
def test_a_log_that_grows_by_bytes_while_salts_are_forgotten_and_runs_undone(
    logs: Visitors, seed: int
) -> None:
    """Each line is counted or rejected in the end, and whoever was counted is in the sketches."""
    draw = random.Random(seed)
    logs.small_chunks(draw.randrange(3, 20))
    visits = some_visits(draw, 60)
    every = logs.expected(visits, one_field=True)
    of_each = [logs.expected([visit], one_field=True) for visit in visits]
    text = b"".join(visit.line() for visit in visits)
    # Often just before a newline, where a line counts without it.
    ends = [at for at in range(len(text)) if text[at : at + 1] == b"\n"]
    cuts = sorted({*draw.sample(ends, 6), *draw.sample(range(200, len(text)), 6), len(text)})
    forgotten_at = draw.choice([None, *cuts])
    # An agent that is cut off may be another one; whoever was counted stays.
    asked: dict[str, Any] = {"input_format": "combined", "visitor": ("host",)}
    source, runs, lines = logs.directory / "a.log", list[int](), dict[int, list[tuple[str, int]]]()

    def add_some() -> BackfillReport:
        out = logs.directory / f"{len(lines)}.rejects"
        report = logs.count(source, **asked, rejects=out)
        lines[run_of(report)] = rejects_in(out)
        return report

    for cut in cuts:
        write(source, text[:cut])
        if cut == forgotten_at:
            logs.forget_salts()
        report = add_some()
        assert report.state == "done"
        runs.append(run_of(report))
        if draw.random() < 0.3:
            last = [runs.pop() for _ in range(draw.randrange(len(runs)) + 1)]
            logs.undo(*last)
            runs.append(run_of(add_some()))
    # Of a line that two chunks have the later one decides.
    decides: dict[int, int] = {}
    for first, run in logs.query("SELECT first_line, run FROM backfill_chunk ORDER BY start_at"):
        decides |= dict.fromkeys(range(first, len(visits) + 1), run)
    gone = {number for number, run in decides.items() if (str(source), number) in lines[run]}
    assert logs.query("SELECT SUM(rejected) FROM backfill_chunk") == [(len(gone),)]
    counted = [visit for number, visit in enumerate(visits, 1) if number not in gone]
    hits = Counter((f"{visit.at:%Y-%m-%d}", visit.key) for visit in counted)
    assert logs.totals() == dict(hits)
    assert not gone or forgotten_at is not None
    found = {place: hashes_in(union) for place, union in logs.sketches().items()}
    for number, one in enumerate(of_each, 1):
        for place, hashes in one.items():
            assert number in gone or hashes <= found[place]
    assert all(hashes <= every[place] for place, hashes in found.items())


def test_lines_counted_without_visitors_are_not_counted_twice_for_them(logs: Visitors) -> None:
    visits = [Visit(NOON + timedelta(seconds=n), host=f"192.0.2.{n}") for n in range(30)]
    source = logs.log("a.log", visits)
    run = run_of(logs.add(source))
    report = logs.count(source)
    assert report.state == "failed"
    assert "now --visitor host,agent" in details(report)
    longer = logs.log("b.log", [Visit(page="/new"), *visits, Visit(page="/more")])
    assert "--count-repeats" in details(logs.count(longer))
    logs.require({})
    logs.undo(run)
    assert logs.count(source).amount == 30
    logs.require_visits(visits)


@pytest.mark.usefixtures("first_slot")
def test_without_the_library_a_chunk_of_many_visitors_is_not_counted(
    logs: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.small_chunks(200)
    visits = [Visit(host=f"192.0.{n // 250}.{n % 250}") for n in range(600)]
    source = logs.log("a.log", visits)
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "datasketches", None)
        report = logs.count(source)
        assert report.state == "failed"
        assert "pip install 'countersink[sketches]'" in details(report)
    assert logs.totals() == {(DAY, "/"): 200}
    logs.require_visits(visits[:200])
    assert logs.count(source).amount == 400
    logs.require_visits(visits)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.usefixtures("first_slot")
def test_lines_of_a_damaged_sketch_of_a_breakdown_are_rejected_as_a_whole(logs: Visitors) -> None:
    logs.set_counter(dimensions=["page", "agent"], breakdowns=["page", "agent"])
    recipe = {**CSV, "key_column": "", "dimensions": (("page", "page"), ("agent", "agent"))}
    recipe["visitor"] = ("who",)
    logs.count(logs.csv("a.csv", [Visit()]), **recipe)
    logs.query("UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = '/'")
    visits = [
        Visit(NOON + timedelta(seconds=n), f"/{n % 7}", f"192.0.2.{n % 9}") for n in range(2000)
    ]
    visits[1200] = Visit(agent="wget")
    report = logs.count(logs.csv("b.csv", visits), **recipe)
    assert (report.counted, report.rejected) == (1999, 1)
    assert [one.line for one in logs.rejected()] == [1202]
    sums = "SELECT counter, SUM(amount) FROM counter_slot GROUP BY counter ORDER BY counter"
    own = [COUNTER, f"{COUNTER}#1", f"{COUNTER}#2"]
    assert logs.query(sums) == [(name, 2000) for name in own]
    agents = logs.query(f"SELECT counter_key FROM counter_slot WHERE counter = '{own[2]}'")
    assert agents == [(b"curl/8.0",)]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.usefixtures("first_slot")
def test_lines_after_one_that_was_open_are_rejected_for_a_damaged_sketch(
    logs: Visitors, newline: bytes
) -> None:
    """They are read twice, both times without the newline of that line."""
    logs.count(logs.log("bad.log", [Visit(page="/bad")]))
    logs.query("UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = '/bad'")
    first = b"".join(Visit(page=f"/{n}").line() for n in range(5)).removesuffix(b"\n")
    path = write_old(logs.directory / "a.log", first)
    assert logs.count(path).counted == 5
    more = [Visit(page="/bad" if n in (3, 7) else "/ok", host=f"192.0.2.{n}") for n in range(20)]
    path.write_bytes(first + newline + b"".join(visit.line() for visit in more))
    report = logs.count(path)
    assert (report.lines, report.counted, report.rejected) == (20, 18, 2)
    assert [one.line for one in logs.rejected()] == [9, 13]


@pytest.mark.usefixtures("first_slot")
def test_the_report_is_of_the_second_reading_also_if_the_reply_to_commit_is_lost(
    logs: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.count(logs.log("bad.log", [Visit(page="/bad")]))
    logs.query("UPDATE visitor_slot SET checksum = checksum ^ 1 WHERE counter_key = '/bad'")
    insert, lost = rejects.store_first, list[Session]()

    def last(session: Session, run: int, lines: list[RejectedLine]) -> None:
        insert(session, run, lines)
        if lines and not lost:
            lost.append(session)

    commit = Session.transaction

    @contextmanager
    def transact(session: Session) -> Iterator[None]:
        with commit(session):
            yield
        if lost == [session]:
            lost.append(session)
            session.close()
            raise Unavailable("the reply was lost")

    monkeypatch.setattr(rejects, "store_first", last)
    monkeypatch.setattr(Session, "transaction", transact)
    path = logs.directory / "rejects"
    visits = [Visit(page="/bad" if n in (3, 7) else "/ok", host=f"192.0.2.{n}") for n in range(20)]
    report = logs.count(logs.log("a.log", visits), rejects=path)
    assert len(lost) == 2
    assert (report.state, report.counted, report.rejected) == ("done", 18, 2)
    assert [number for _, number in rejects_in(path)] == [4, 8]


@pytest.mark.servers("mariadb", "mysql")
def test_child_processes_read_the_visitors_of_chunks(logs: Visitors) -> None:
    logs.small_chunks()
    logs.monkeypatch.setattr(read_ahead, "THREAD_CHUNKS", 1)
    visits = some_visits(random.Random(2), 300)
    seen: list[Progress] = []
    source = logs.log("a.log", visits)
    report = logs.count(source, jobs=2, on_progress=seen.append)
    assert (report.amount, report.notices) == (300, ())
    assert max(one.jobs for one in seen) == 2
    logs.require_visits(visits)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"counter": "plain"}, "plain does not count different visitors"),
        ({"visitor": ("nobody",)}, "nobody"),
        ({**CSV, "visitor": ("who",), "amount_column": "n"}, "leave out --amount-column"),
        ({"mode": "reconcile"}, "give --visitor with --mode add"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_counted(
    logs: Visitors, given: dict[str, Any], said: str
) -> None:
    source = logs.log("a.log", [Visit()])
    with pytest.raises(BackfillError, match=said):
        logs.count(source, **given)
    assert logs.totals() == {}
