"""Undo: exactly what a run added is taken back, whatever was done to the counter since."""

import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import pytest

from countersink.backfill.count import targets
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Progress
from countersink.backfill.undo import Undone
from countersink.counting.counters.buckets import NUMBER
from countersink.database.session import Session
from countersink.store import Store
from tests.backfill.helpers import (
    COUNTER,
    NOON,
    Logs,
    day,
    details,
    keys_of,
    line,
    log,
    long_log,
    run_of,
    write,
)
from tests.support.entries import compacted, killed_anywhere, rolled_up, together
from tests.support.proxies import Deed, MySQLProxy, Phase

pytestmark = pytest.mark.servers("mariadb", "mysql")


@pytest.fixture
def small_chunks(logs: Logs) -> None:
    """100 lines a chunk."""
    logs.small_chunks()


def by_key(logs: Logs) -> dict[str, int]:
    """The totals of all keys over all buckets, without what is 0."""
    found: Counter[str] = Counter()
    for (_, key), amount in logs.totals().items():
        found[key] += amount
    return {key: amount for key, amount in found.items() if amount}


def test_what_was_added_is_taken_back_and_nothing_is_left_of_it(logs: Logs) -> None:
    source = logs.write("a.log", long_log(500) + b"nonsense\n")
    run = logs.run(source)
    assert logs.totals() == keys_of(500)
    assert len(logs.rejected()) == 1
    seen: list[tuple[int, int]] = []
    done = logs.undo(run, on_progress=lambda *at: seen.append(at))
    assert done == Undone(
        runs=(run,), counter=COUNTER, mode="add", state="undone", chunks=1, cells=7, amount=-500
    )
    assert seen == [(1, 1)]
    assert logs.totals() == {}
    assert logs.left().keys() == {"run"}
    assert logs.rejected() == []
    assert logs.state(run) == "undone"


def test_exactly_the_live_traffic_stays_after_compaction_roll_up_and_another_resolution(
    logs: Logs, store: Store
) -> None:
    old = NOON - timedelta(days=120)
    later = datetime.now(UTC) - timedelta(days=2)
    logs.live((old, "/0", 5), (NOON, "/0", 3))
    lines = (line(f"/{number % 3}", at=old + timedelta(hours=50 * number)) for number in range(60))
    run = logs.run(logs.write("a.log", b"".join(lines)))
    logs.live((NOON, "/0", 7), (NOON, "/live", 1))
    compacted(logs.url)
    assert logs.query("SELECT COUNT(*) FROM counter_slot WHERE slot >= 512") == [(0,)]
    store.counters.set(COUNTER, keep="day=60d")
    assert rolled_up(logs.url).rolled_up > 0
    logs.live((later, "/2", 11))
    store.counters.set(COUNTER, resolution="hour")
    logs.live((later, "/1", 13))
    assert by_key(logs) == {"/0": 35, "/1": 33, "/2": 31, "/live": 1}
    logs.undo(run)
    wanted = {"/0": 15, "/1": 13, "/2": 11, "/live": 1}
    assert by_key(logs) == wanted
    compacted(logs.url)
    rolled_up(logs.url)
    assert by_key(logs) == wanted
    # Bucket by bucket: nothing of it is left in a day that live traffic is not in.
    found = logs.query(
        "SELECT width, SUM(amount) FROM counter_slot WHERE width < %s"
        " GROUP BY bucket, width, counter_key HAVING SUM(amount) <> 0 ORDER BY width",
        NUMBER["month"],
    )
    assert found == [(NUMBER["hour"], 13), (NUMBER["day"], 11)]


@pytest.mark.parametrize("moved", [False, True])
def test_keys_that_add_up_to_0_are_gone_and_others_stay(
    logs: Logs, store: Store, moved: bool
) -> None:
    store.counters.set(COUNTER, dimensions=["page"], breakdowns=["page"])
    logs.live((NOON, "/0", 4), (NOON, "/0", -4), (NOON, "/declared", 0), (NOON, "/both", 2))
    lines = (line(f"/{page}") for page in ("0", "1", "both") for _ in range(3))
    run = logs.run(logs.write("a.log", b"".join(lines)))
    if moved:
        compacted(logs.url)
    assert store.totals.by_key(COUNTER)[0] == ("/both", 5)
    logs.undo(run)
    assert dict(store.totals.by_key(COUNTER)) == {"/both": 2, "/declared": 0}
    logs.require_verified()
    logs.live((NOON, "/1", 1), (NOON, "/0", 1))
    assert dict(store.totals.by_key(COUNTER))["/1"] == 1
    logs.require_verified()


@pytest.mark.usefixtures("small_chunks")
def test_killed_anywhere_it_goes_on_when_it_is_run_again(logs: Logs) -> None:
    source = logs.write("a.log", long_log(450))
    run = logs.run(source)
    logs.live((NOON, "/0", 3))

    def check() -> None:
        logs.require_verified()
        assert logs.state(run) == "undoing"

    # The second point in turn with the third: in the first chunk, and in the next one.
    undo = partial(logs.undo, run)
    deaths = killed_anywhere(
        lambda reached: undo(reached=reached), check, lambda deaths: 2 + deaths % 2
    )
    assert deaths > 8
    assert logs.totals() == day("/0", "/0", "/0")
    assert logs.left().keys() == {"run"}


@pytest.mark.usefixtures("small_chunks")
def test_two_at_once_take_it_back_once(logs: Logs) -> None:
    source = logs.write("a.log", long_log(1500))
    run = logs.run(source)
    logs.live((NOON, "/0", 3))
    both = together(*[partial(logs.undo, run)] * 2)
    assert sum(one.chunks for one in both) == 15
    assert sum(one.amount for one in both) == -1500
    assert logs.totals() == day("/0", "/0", "/0")
    assert logs.state(run) == "undone"


@pytest.mark.usefixtures("small_chunks")
def test_a_lost_reply_of_a_commit_takes_nothing_back_twice(logs: Logs, proxy: MySQLProxy) -> None:
    source = logs.write("a.log", long_log(300))
    run = logs.run(source)
    logs.live((NOON, "/0", 3))
    commits = count()
    every_second = proxy.when(
        "commit_other", Phase.AFTER, Deed.CUT, times=0, where=lambda *_: next(commits) % 2 == 0
    )
    done = logs.through(proxy).undo(run)
    assert every_second.acted > 3
    assert (done.chunks, done.amount) == (3, -300)
    assert logs.totals() == day("/0", "/0", "/0")


def test_what_cannot_be_undone_is_refused(logs: Logs, store: Store) -> None:
    for number in (0, -1, 7, 2**64, 10**30):
        with pytest.raises(BackfillError, match=f"no backfill {number}"):
            logs.undo(number)
    source = logs.write("a.log", log("/a"))
    first = logs.run(source)
    logs.undo(first)
    with pytest.raises(BackfillError, match=f"backfill {first} was undone already, at 20"):
        logs.undo(first)
    second = logs.run(source)
    with pytest.raises(BackfillError, match="was undone"):
        logs.undo(first)
    assert logs.totals() == day("/a")
    store.counters.delete(COUNTER)
    with pytest.raises(BackfillError, match="its counter views was deleted"):
        logs.undo(second)


def test_runs_of_a_source_that_grows_are_taken_back_from_its_end(logs: Logs) -> None:
    source = logs.directory / "a.log"
    runs = []
    for lines in 100, 250, 300, 310:
        write(source, long_log(lines))
        runs.append(logs.run(source))
    first, second, third, last = runs
    with pytest.raises(
        BackfillError, match=f"undo {last} {third} {second}` undoes all of them tog"
    ):
        logs.undo(second)
    assert logs.state(second) == "done"
    logs.undo(last)
    assert logs.totals() == keys_of(300)
    done = logs.undo(second, third)
    assert (done.state, done.chunks, done.amount) == ("undone", 2, -200)
    assert (logs.state(second), logs.state(third)) == ("undone", "undone")
    assert logs.totals() == keys_of(100)
    again = logs.add(source)
    assert (again.lines, again.known_lines) == (210, 100)
    logs.undo(first, run_of(again))
    assert logs.totals() == {}
    assert logs.left().keys() == {"run"}


def test_of_two_that_counted_a_source_in_turns_both_are_taken_back(logs: Logs) -> None:
    logs.small_chunks()
    source = logs.write("a.log", long_log(600))
    others: list[int] = []

    def four_are_there() -> bool:
        return logs.rows("backfill_chunk") == 4

    def in_turns(progress: Progress) -> None:
        if progress.lines == 200 and not others:
            others.append(logs.run(source, stop=four_are_there))

    first = logs.run(source, on_progress=in_turns)
    found = logs.query("SELECT run FROM backfill_chunk ORDER BY start_at")
    assert [run for (run,) in found] == [first, first, *others, *others, first, first]
    for one in first, *others:
        with pytest.raises(BackfillError, match=f"undo {others[0]} {first}`"):
            logs.undo(one)
    assert logs.undo(first, *others).chunks == 6
    assert logs.totals() == {}
    assert logs.left().keys() == {"run"}


def test_only_runs_that_added_to_one_counter_are_taken_back_together(logs: Logs) -> None:
    first = logs.run(logs.write("a.log", log("/a")))
    other = logs.run(logs.write("b.log", log("/b")), counter="others")
    with pytest.raises(BackfillError, match="only runs of --mode add and one counter"):
        logs.undo(first, other)
    set_by = run_of(logs.reconcile(logs.write("c.log", log("/a"))))
    with pytest.raises(BackfillError, match="only runs of --mode add and one counter"):
        logs.undo(first, set_by)
    assert logs.state(first) == logs.state(set_by) == "done"
    assert logs.undo(set_by, set_by).runs == (set_by,)


@pytest.mark.usefixtures("small_chunks")
def test_told_to_stop_it_ends_after_a_chunk_and_goes_on_later(logs: Logs) -> None:
    source = logs.write("a.log", long_log(500))
    run = logs.run(source)
    answers = iter([False, False, True])
    done = logs.undo(run, stop=lambda: next(answers))
    assert (done.state, done.chunks, done.amount) == ("undoing", 2, -200)
    # The last ones first: what is left is as if less had been read.
    assert logs.totals() == keys_of(300)
    # Behind it nothing is counted.
    report = logs.add(source)
    assert (report.state, report.counted) == ("failed", 0)
    assert f"`countersink backfills undo {run}` to finish that" in details(report)
    done = logs.undo(run)
    assert (done.state, done.chunks, done.amount) == ("undone", 3, -300)
    assert logs.totals() == {}
    assert logs.add(source).counted == 500
    assert logs.totals() == keys_of(500)


def test_a_damaged_journal_is_said_and_nothing_of_its_chunk_is_touched(
    logs: Logs, session: Session
) -> None:
    source = logs.write("a.log", log("/a", "/b"))
    run = logs.run(source)
    ((good,),) = session.query("SELECT cells FROM backfill_journal")
    change = "UPDATE backfill_journal SET cells = %s"
    pieces = map(zlib.compress, (b"[[", b"1", b'[[1,"a"]]'))
    for piece in (b"", b"x", b"x\x9c", *pieces):
        session.execute(change, (piece,))
        with pytest.raises(BackfillError, match=r"be read .* restore the table backfill_journal"):
            logs.undo(run)
        session.execute(change, (good,))
        assert logs.totals() == day("/a", "/b"), piece
    session.execute("DELETE FROM backfill_journal")
    with pytest.raises(BackfillError, match=r"sum is 0, but 2 was added.*restore the table"):
        logs.undo(run)
    assert logs.query("SELECT SUM(amount) FROM counter_slot") == [(2,)]


def test_a_chunk_whose_journal_has_several_pieces_is_taken_back(logs: Logs) -> None:
    logs.monkeypatch.setattr(targets, "_CELLS_PER_PIECE", 3)
    run = logs.run(logs.write("a.log", long_log(70, keys=7)))
    assert logs.rows("backfill_journal") == 3
    assert logs.totals() == keys_of(70)
    logs.undo(run)
    assert logs.totals() == {}


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_that_was_counted_anew_meanwhile_is_not_taken_back(logs: Logs) -> None:
    """By a process that goes on with an undo which another one has finished."""
    source = logs.write("a.log", long_log(300))
    run = logs.run(source)

    again: list[int] = []

    def told(done: int, _of: int) -> None:
        if done == 1:
            logs.undo(run)
            again.append(logs.run(source))

    done = logs.undo(run, on_progress=told)
    assert (done.state, done.chunks) == ("undone", 1)
    assert logs.totals() == keys_of(300)
    assert logs.query("SELECT DISTINCT run FROM backfill_chunk") == [(again[0],)]
