"""Undo: exactly what a run added is taken back, whatever was done to the counter since."""

import threading
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from countersink.backfill.count import targets, task
from countersink.backfill.errors import BackfillError, RunEnded
from countersink.backfill.run import backfill
from countersink.backfill.undo import Undone, UndoProgress, undo
from countersink.runtime.limits import key_text
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables as open_mover
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store
from countersink.store.apply.amounts import Row
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, connect
from countersink.store.counters import buckets
from countersink.store.sql import label_of
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import (
    COUNTER,
    DAY,
    NOON,
    add,
    day,
    keys_of,
    line,
    log,
    long_log,
    options,
    query,
    rejected,
    require_verified,
    totals,
    write,
)
from tests.store.helpers import MAX, MIN, entry, together
from tests.support.proxies import Deed, MySQLProxy, Phase
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

TABLES = ("source", "chunk", "journal", "reject", "truth", "drift")
"""What a run leaves behind, but for its own row."""


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 lines a chunk."""
    monkeypatch.setattr(task, "LINES", 100)


def live(applier: Applier, *hits: tuple[datetime, str, int]) -> None:
    """Count what was sent live."""
    rows: list[Row] = [
        (position, COUNTER, key, int(at.timestamp()) // 60, amount)
        for position, (at, key, amount) in enumerate(hits)
    ]
    applier.apply([entry(rows)])


def by_key(mysql_url: str) -> dict[str, int]:
    """The totals of all keys over buckets and months, without what is 0."""
    require_verified(mysql_url)
    found: Counter[str] = Counter()
    for table in "counter_slot", "counter_month":
        for key, amount in query(mysql_url, f"SELECT counter_key, amount FROM {table}"):
            found[key_text(key)] += int(amount)
    return {key: amount for key, amount in found.items() if amount}


def left_behind(mysql_url: str) -> dict[str, int]:
    """Rows that runs have left in their tables."""
    return {
        table: int(query(mysql_url, f"SELECT COUNT(*) FROM backfill_{table}")[0][0])
        for table in TABLES
    }


def state(mysql_url: str, run: int) -> str:
    return str(query(mysql_url, "SELECT state FROM backfill_run WHERE id = %s", run)[0][0])


def require_reported(mysql_url: str, what: str) -> None:
    """Verify says that nothing is wrong but this."""
    with open_session(mysql_url) as verifying:
        (found,) = verify(verifying).differences
    assert (found.problem, what in found.detail) == ("backfill", True), found


def run_of(mysql_url: str, *sources: Path, **given: object) -> int:
    number = add(mysql_url, *sources, **given).run
    assert number is not None
    return number


def test_what_was_added_is_taken_back_and_nothing_is_left_of_it(
    mysql_url: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(500) + b"nonsense\n")
    run = run_of(mysql_url, source)
    assert totals(mysql_url) == keys_of(500)
    assert len(rejected(mysql_url)) == 1
    seen: list[UndoProgress] = []
    done = undo(mysql_url, run, on_progress=seen.append)
    assert done == Undone(
        run=run, counter=COUNTER, mode="add", state="undone", chunks=1, cells=7, amount=-500
    )
    assert seen == [UndoProgress(done=1, of=1)]
    assert totals(mysql_url) == {}
    assert left_behind(mysql_url) == dict.fromkeys(TABLES, 0)
    assert state(mysql_url, run) == "undone"


def test_exactly_the_live_traffic_stays_after_compaction_roll_up_and_another_policy(
    store: Store, mysql_url: str, applier: Applier, session: Session, tmp_path: Path
) -> None:
    old = NOON - timedelta(days=120)
    later = datetime.now(UTC) - timedelta(days=2)
    live(applier, (old, "/0", 5), (NOON, "/0", 3))
    source = write(
        tmp_path / "a.log",
        b"".join(
            line(f"/{number % 3}", at=old + timedelta(hours=50 * number)) for number in range(60)
        ),
    )
    run = run_of(mysql_url, source)
    live(applier, (NOON, "/0", 7), (NOON, "/live", 1))
    compact(partial(open_mover, mysql_url), CompactOptions())
    assert query(mysql_url, "SELECT COUNT(*) FROM counter_slot WHERE slot >= 512") == [(0,)]
    store.counters.set(COUNTER, keep_days=60)
    assert roll_up(partial(open_mover, mysql_url)).rows > 0
    # From then on days are Tokyo's, in hours.
    start = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
    store.counters.set(COUNTER, time_zone="Asia/Tokyo", resolution="hour", start=start)
    live(applier, (later, "/2", 11), (start, "/1", 13))
    assert by_key(mysql_url) == {"/0": 35, "/1": 33, "/2": 31, "/live": 1}
    undo(mysql_url, run)
    wanted = {"/0": 15, "/1": 13, "/2": 11, "/live": 1}
    assert by_key(mysql_url) == wanted
    compact(partial(open_mover, mysql_url), CompactOptions())
    roll_up(partial(open_mover, mysql_url))
    assert by_key(mysql_url) == wanted
    # Bucket by bucket: nothing of it is left in a day that live traffic is not in.
    found = query(
        mysql_url,
        "SELECT bucket, counter_key, SUM(amount) FROM counter_slot GROUP BY bucket, counter_key"
        " HAVING SUM(amount) <> 0 ORDER BY bucket, counter_key",
    )
    assert [int(amount) for _, _, amount in found] == [11, 13]
    assert [buckets.policy_number(label_of(bucket)) for bucket, _, _ in found] == [0, 1]


class _Killed(Exception):
    """Stands for a process that dies at a point."""


def die_at(point: int) -> Callable[[str], None]:
    """Dies at the point with this number, from 1."""
    points = count(1)

    def reached(name: str) -> None:
        if next(points) == point:
            raise _Killed(name)

    return reached


@pytest.mark.usefixtures("small_chunks")
def test_killed_anywhere_it_goes_on_when_it_is_run_again(
    mysql_url: str, applier: Applier, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(450))
    run = run_of(mysql_url, source)
    live(applier, (NOON, "/0", 3))
    deaths = 0
    while True:
        try:
            # The second point in turn with the third: in the first chunk, and in the next one.
            done = undo(mysql_url, run, reached=die_at(2 + deaths % 2))
            break
        except _Killed:
            deaths += 1
        require_verified(mysql_url)
        assert state(mysql_url, run) == "undoing"
        assert deaths < 50
    assert deaths > 8
    assert done.chunks == 0
    assert totals(mysql_url) == day("/0", "/0", "/0")
    assert left_behind(mysql_url) == dict.fromkeys(TABLES, 0)


@pytest.mark.usefixtures("small_chunks")
def test_two_at_once_take_it_back_once(mysql_url: str, applier: Applier, tmp_path: Path) -> None:
    source = write(tmp_path / "a.log", long_log(1500))
    run = run_of(mysql_url, source)
    live(applier, (NOON, "/0", 3))
    both = together(*[partial(undo, mysql_url, run)] * 2)
    assert sum(one.chunks for one in both) == 15
    assert sum(one.amount for one in both) == -1500
    assert totals(mysql_url) == day("/0", "/0", "/0")
    assert state(mysql_url, run) == "undone"


@pytest.mark.usefixtures("small_chunks")
def test_a_lost_reply_of_a_commit_takes_nothing_back_twice(
    mysql_url: str, applier: Applier, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(300))
    run = run_of(mysql_url, source)
    live(applier, (NOON, "/0", 3))
    proxy = MySQLProxy.to(mysql_url)
    commits = count()
    every_second = proxy.when(
        "commit_other", Phase.AFTER, Deed.CUT, times=0, where=lambda *_: next(commits) % 2 == 0
    )
    try:
        done = undo(proxy.url(mysql_url), run)
    finally:
        proxy.close()
    assert every_second.acted > 3
    assert (done.chunks, done.amount) == (3, -300)
    assert totals(mysql_url) == day("/0", "/0", "/0")


@pytest.mark.usefixtures("small_chunks")
def test_a_run_that_is_still_counting_ends_and_nothing_of_it_stays(
    mysql_url: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(2000))
    reading, undone = threading.Event(), threading.Event()

    def between_two_chunks() -> bool:
        if not reading.is_set() and left_behind(mysql_url)["chunk"]:
            reading.set()
            assert undone.wait(60)
        return False

    ended: list[BaseException] = []

    def run() -> None:
        try:
            backfill(mysql_url, options(source), stop=between_two_chunks)
        except BackfillError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert reading.wait(60)
        (number,) = (row[0] for row in query(mysql_url, "SELECT id FROM backfill_run"))
        undo(mysql_url, number)
    finally:
        undone.set()
        thread.join(60)
    assert [type(error) for error in ended] == [RunEnded]
    assert totals(mysql_url) == {}
    assert state(mysql_url, number) == "undone"
    assert add(mysql_url, source).lines == 2000
    assert totals(mysql_url) == keys_of(2000)


def test_what_cannot_be_undone_is_refused(store: Store, mysql_url: str, tmp_path: Path) -> None:
    for number in (0, -1, 7, 2**64, 10**30):
        with pytest.raises(BackfillError, match=f"no backfill {number}"):
            undo(mysql_url, number)
    source = write(tmp_path / "a.log", log("/a"))
    first = run_of(mysql_url, source)
    undo(mysql_url, first)
    with pytest.raises(BackfillError, match=f"backfill {first} was undone already, at 20"):
        undo(mysql_url, first)
    second = run_of(mysql_url, source)
    with pytest.raises(BackfillError, match="was undone"):
        undo(mysql_url, first)
    assert totals(mysql_url) == day("/a")
    store.counters.delete(COUNTER)
    with pytest.raises(BackfillError, match="gone with its counter views"):
        undo(mysql_url, second)


def test_each_run_of_a_source_that_grows_is_taken_back_by_itself(
    mysql_url: str, tmp_path: Path
) -> None:
    source = tmp_path / "a.log"
    runs = []
    for lines in 100, 250, 300:
        write(source, long_log(lines))
        runs.append(run_of(mysql_url, source))
    assert totals(mysql_url) == keys_of(300)
    undo(mysql_url, runs[1])
    between = Counter(keys_of(250))
    between.subtract(keys_of(100))
    rest = Counter(keys_of(300))
    rest.subtract(between)
    assert totals(mysql_url) == dict(rest)
    again = add(mysql_url, source)
    assert (again.lines, again.known_lines) == (150, 150)
    assert totals(mysql_url) == keys_of(300)
    for run in (runs[0], runs[2], again.run):
        assert left_behind(mysql_url)["source"] == 1
        assert run is not None
        undo(mysql_url, run)
    assert totals(mysql_url) == {}
    assert left_behind(mysql_url) == dict.fromkeys(TABLES, 0)


def test_a_line_that_was_counted_before_it_was_whole_comes_out_right(
    mysql_url: str, tmp_path: Path
) -> None:
    source = tmp_path / "a.log"
    write(source, log("/a", "/b")[:-10])
    first = run_of(mysql_url, source)
    before = totals(mysql_url)
    write(source, log("/a", "/b", "/c"))
    second = run_of(mysql_url, source)
    assert totals(mysql_url) == day("/a", "/b", "/c")
    undo(mysql_url, second)
    assert totals(mysql_url) == before
    third = run_of(mysql_url, source)
    assert totals(mysql_url) == day("/a", "/b", "/c")
    # Whichever goes first: both together are all there was.
    undo(mysql_url, first)
    undo(mysql_url, third)
    assert totals(mysql_url) == {}


@pytest.mark.usefixtures("small_chunks")
def test_told_to_stop_it_ends_after_a_chunk_and_goes_on_later(
    mysql_url: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", long_log(500))
    run = run_of(mysql_url, source)
    answers = iter([False, False, True])
    done = undo(mysql_url, run, stop=lambda: next(answers))
    assert (done.state, done.chunks, done.amount) == ("undoing", 2, -200)
    # The last ones first: what is left is as if less had been read.
    assert totals(mysql_url) == keys_of(300)
    done = undo(mysql_url, run)
    assert (done.state, done.chunks, done.amount) == ("undone", 3, -300)
    assert totals(mysql_url) == {}


def test_a_damaged_journal_is_said_and_nothing_of_its_chunk_is_touched(
    mysql_url: str, session: Session, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", log("/a", "/b"))
    run = run_of(mysql_url, source)
    ((good,),) = session.query("SELECT cells FROM backfill_journal")
    change = "UPDATE backfill_journal SET cells = %s"
    pieces = map(zlib.compress, (b"[[", b"1", b'[[1,"a"]]'))
    for piece in (b"", b"x", b"x\x9c", *pieces):
        session.execute(change, (piece,))
        require_reported(mysql_url, "the journal of source")
        with pytest.raises(BackfillError, match=r"be read .* restore table backfill_journal"):
            undo(mysql_url, run)
        session.execute(change, (good,))
        assert totals(mysql_url) == day("/a", "/b"), piece
    session.execute("DELETE FROM backfill_journal")
    require_reported(mysql_url, "the journal of the chunk of source")
    with pytest.raises(BackfillError, match="says 0 where 2 was added: it is damaged"):
        undo(mysql_url, run)
    assert query(mysql_url, "SELECT SUM(amount) FROM counter_slot") == [(2,)]


def test_the_largest_amounts_are_taken_back_too(
    mysql_url: str, applier: Applier, tmp_path: Path
) -> None:
    source = write(
        tmp_path / "a.csv",
        f"key,time,n\nlow,{DAY} 12:00,{MIN}\nhigh,{DAY} 12:00,{MAX}\n".encode(),
    )
    run = run_of(
        mysql_url,
        source,
        input_format="csv",
        key_column="key",
        time_column="time",
        amount_column="n",
        time_zone="UTC",
    )
    assert totals(mysql_url) == {(DAY, "low"): MIN, (DAY, "high"): MAX}
    live(applier, (NOON, "low", 1), (NOON, "high", -2))
    compact(partial(open_mover, mysql_url), CompactOptions())
    undo(mysql_url, run)
    assert totals(mysql_url) == {(DAY, "low"): 1, (DAY, "high"): -2}


def test_a_chunk_whose_journal_has_several_pieces_is_taken_back(
    mysql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_CELLS", 3)
    run = run_of(mysql_url, write(tmp_path / "a.log", long_log(70, keys=7)))
    with connect(mysql_url) as session:
        assert session.query("SELECT COUNT(*) FROM backfill_journal") == [(3,)]
    assert totals(mysql_url) == keys_of(70)
    undo(mysql_url, run)
    assert totals(mysql_url) == {}


def test_a_source_that_another_run_is_about_to_count_is_not_forgotten(
    mysql_url: str, session: Session, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.log", log("/a"))
    run = run_of(mysql_url, source)
    with connect(mysql_url) as other, other.transaction():

        def reached(point: str) -> None:
            if point == "taken_back":
                # Another run counts the chunk anew, and has not committed yet.
                assert other.query(
                    "SELECT 1 FROM backfill_chunk WHERE state = 'undone' FOR UPDATE SKIP LOCKED"
                )
                other.execute("UPDATE backfill_chunk SET state = 'done', run = 99")

        thread = threading.Thread(target=undo, args=(mysql_url, run), kwargs={"reached": reached})
        thread.start()
        for _ in range(20):  # it waits for the chunk, and is not just passing
            eventually(
                lambda: any(
                    "backfill_chunk" in str(row[7])
                    for row in session.query("SHOW FULL PROCESSLIST")
                )
            )
    thread.join(60)
    assert left_behind(mysql_url)["chunk"] == 1
    assert left_behind(mysql_url)["source"] == 1
    assert state(mysql_url, run) == "undone"


@pytest.mark.usefixtures("small_chunks")
def test_a_reconcile_is_taken_back_and_its_sources_are_forgotten(
    mysql_url: str, redis_url: str, applier: Applier, tmp_path: Path
) -> None:
    live(applier, (NOON, "/0", 30), (NOON, "/1", 200), (NOON, "/live", 4))
    before = totals(mysql_url)
    source = write(tmp_path / "a.log", long_log(500) + b"nonsense\n")
    asked = options(source, mode="reconcile", rejects=tmp_path / "rejects")
    report = backfill(mysql_url, asked, redis_url=redis_url)
    assert report.run is not None
    assert (report.state, report.corrections) == ("done", 7)
    assert totals(mysql_url) == keys_of(500) | {(DAY, "/live"): 4}
    live(applier, (NOON, "/0", 1))
    seen: list[UndoProgress] = []
    done = undo(mysql_url, report.run, on_progress=seen.append)
    assert (done.mode, done.state, done.cells, done.amount) == ("reconcile", "undone", 7, -270)
    assert seen[-1].done == seen[-1].of == done.chunks
    assert totals(mysql_url) == before | {(DAY, "/0"): 31}
    assert left_behind(mysql_url) == dict.fromkeys(TABLES, 0)
    with pytest.raises(BackfillError, match="was undone"):
        undo(mysql_url, report.run)
    # It is known no more: it may be added now.
    assert add(mysql_url, source).counted == 500
