"""Reconciling: totals are what the sources say, for the days that they are the truth for."""

from datetime import date
from typing import Any

import pytest
import redis

from countersink.backfill import reconcile
from countersink.backfill.errors import BackfillError
from countersink.backfill.options import Drift, Progress
from countersink.backfill.reconcile import correction
from countersink.backfill.run import clear_reconciles
from countersink.counting.apply import dead
from countersink.counting.apply.applier import Applier
from countersink.counting.apply.key_caps import OVERFLOW
from countersink.counting.counters.buckets import ONE_DAY, width_of
from countersink.counting.errors import TrackedCounter
from countersink.database.sql import label_time
from countersink.stream.connection import command
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.backfill.truths import (
    DAY,
    NEXT,
    Scene,
    bucket,
    hour_ago,
    on_days,
    options,
)
from tests.counting.test_tracked_refusals import track
from tests.support.entries import MAX, MIN, ledger, minute
from tests.support.traffic import now_ms, send

pytestmark = [pytest.mark.servers("mariadb", "mysql"), pytest.mark.usefixtures("store")]


def test_totals_become_what_the_sources_say(scene: Scene) -> None:
    scene.count({(DAY, "/lost"): 2, (DAY, "/right"): 5, (DAY, "/twice"): 8, (NEXT, "/"): 1})
    run = scene.new_run()
    scene.say(run, {(DAY, "/lost"): 2, (DAY, "/right"): 5, (DAY, "/new"): 7})
    scene.say(run, {(DAY, "/lost"): 1, (DAY, "/twice"): 4})
    done = scene.correct(run)
    assert (done.corrections, done.amount, done.finished) == (3, 1 + 7 - 4, True)
    of_day = {(DAY, "/lost"): 3, (DAY, "/right"): 5, (DAY, "/twice"): 4, (DAY, "/new"): 7}
    assert scene.totals() == on_days({**of_day, (NEXT, "/"): 1})
    assert {key: what for (_, key), what in scene.drift(run).items()} == {
        "/lost": (2, 3),
        "/new": (0, 7),
        "/twice": (8, 4),
    }
    assert scene.marks(run) == {DAY}
    assert ledger(scene.session) == {"views": 20}
    slots = scene.session.query("SELECT DISTINCT slot FROM counter_slot WHERE slot <> 17")
    assert all(512 <= slot < 1024 for (slot,) in slots)
    # What the sources said is not kept for ever.
    scene.session.execute("UPDATE backfill_run SET state = 'done'")
    clear_reconciles(scene.session, "views")
    assert scene.session.query("SELECT COUNT(*), COUNT(had) FROM backfill_correction") == [(3, 3)]
    assert scene.session.query("SELECT corrections, amount FROM backfill_run") == [(3, 4)]
    assert done.notices == []


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("delete_missing", [False, True])
def test_keys_that_the_sources_do_not_have_go_to_zero_only_when_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, rows: int, delete_missing: bool
) -> None:
    monkeypatch.setattr(correction, "ROWS", rows)
    monkeypatch.setattr(correction, "KEYS_PER_STATEMENT", rows)
    other = Applier(scene.url, 18)
    for one in scene.applier, other:
        scene.count({(DAY, key): 10 for key in ("", "b", "c", "d", "f", "ä", "zz")}, applier=one)
    other.close()
    said = {(DAY, "a"): 1, (DAY, "c"): 3, (DAY, "d"): 20, (DAY, "é"): 5, (DAY, "y"): 0}
    would = scene.would(said, start=DAY, end=DAY, delete_missing=delete_missing)
    run = scene.said_by(said)
    done = scene.correct(run, delete_missing=delete_missing)
    left = 0 if delete_missing else 20
    expected = {place: amount for place, amount in said.items() if amount}
    expected |= {(DAY, key): left for key in ("", "b", "f", "ä", "zz")}
    assert scene.totals() == on_days(expected)
    assert done.corrections == len(scene.drift(run)) == (8 if delete_missing else 3)
    assert (would.corrections, would.amount) == (done.corrections, done.amount)
    assert [(one.key, one.had, one.should_be) for one in would.drift] == [
        (key, *what) for (_, key), what in scene.drift(run).items()
    ]


def test_with_a_range_of_days_all_days_in_it_are_set(scene: Scene) -> None:
    before, after = date(2026, 3, 12), date(2026, 3, 17)
    scene.count({(day, "/"): 4 for day in (before, DAY, NEXT, after)})
    run = scene.said_by({(DAY, "/"): 5})
    asked: dict[str, Any] = {"start": date(2026, 3, 13), "end": date(2026, 3, 16)}
    done = scene.correct(run, delete_missing=True, **asked)
    assert done.notices == []
    assert scene.totals() == on_days(
        {(before, "/"): 4, (DAY, "/"): 5, (NEXT, "/"): 0, (after, "/"): 4}
    )
    assert scene.marks(run) == {date(2026, 3, day) for day in range(13, 17)}
    # Without --delete-missing they are marked all the same, and stay as they are.
    run = scene.said_by({(DAY, "/"): 5})
    scene.correct(run, **asked)
    assert len(scene.marks(run)) == 4


def by_day(scene: Scene) -> list[tuple[date, int]]:
    return scene.store.totals.daily("views", start=DAY, end=NEXT)


@pytest.mark.parametrize("resolution", ["day", "minute"])
def test_what_was_accepted_before_and_comes_later_is_not_counted_on_top(
    scene: Scene, resolution: Any
) -> None:
    """In whichever bucket of the day."""
    scene.set_counter(resolution=resolution)
    scene.count({(DAY, "/"): 1})
    t0 = hour_ago()
    run = scene.said_by({(DAY, "/"): 9})
    scene.correct(run, t0)
    spooled = (0, "views", "/", minute(DAY, 900), 8), (1, "views", "/", minute(NEXT), 2)
    assert scene.late(*spooled, sent=t0 - 86_400_000) == 1
    assert by_day(scene) == [(DAY, 9), (NEXT, 2)]
    assert dead.count(scene.session) == {"reconciled": 1}
    assert f"backfill {run} " in dead.list_rows(scene.session)[0].detail
    scene.count({(DAY, "/"): 1})  # sent now
    assert by_day(scene) == [(DAY, 10), (NEXT, 2)]


@pytest.mark.parametrize("resolution", ["hour", "day"])
def test_days_that_were_open_when_it_began_are_left_out(scene: Scene, resolution: Any) -> None:
    scene.set_counter(resolution=resolution)
    noon = minute(DAY, 720)
    run = scene.said_by({(noon - 1440, "/"): 1, (noon, "/"): 2, (noon + 600, "/"): 3})
    ends = minute(NEXT, 0) * 60_000
    days: dict[str, Any] = {"start": date(2026, 3, 13), "end": DAY}
    done = scene.correct(run, ends + 900_000 - 1, **days)
    assert scene.totals() == {(bucket(resolution, noon - 1440), "/"): 1}
    assert scene.marks(run) == {date(2026, 3, 13)}
    assert done.notices == [f"left out (not over for 900 s when this run began): {DAY}"]
    run = scene.said_by({(noon, "/"): 2})
    scene.correct(run, ends + 10_000, grace_s=10.0, **days)
    assert scene.totals()[bucket(resolution, noon), "/"] == 2
    assert scene.marks(run) == {date(2026, 3, 13), DAY}


def test_days_whose_buckets_go_beyond_them_are_left_out(scene: Scene) -> None:
    scene.set_counter(time_zone="Asia/Kolkata", resolution="quarter")
    scene.count({(DAY, "/"): 3})
    # As only SQL can set it: midnight there is in the midst of an hour.
    scene.session.execute("UPDATE counter SET resolution = 'hour'")
    for _ in range(2):
        run = scene.said_by({(DAY, "/"): 1})
        done = scene.correct(run, start=DAY, end=NEXT)
        assert done.notices == [f"{ACROSS}: {DAY} to {NEXT}"]
        assert (scene.marks(run), done.corrections) == (set(), 0)
    # With quarters, those in which such an hour was counted.
    scene.session.execute("UPDATE counter SET resolution = 'quarter', counted_hour = '2030-01-01'")
    midnight = minute(DAY, 18 * 60 + 30)
    scene.session.execute(
        "INSERT INTO counter_slot (counter, bucket, counter_key, width, slot, amount)"
        " VALUES ('views', %s, 'x', 3, 0, 0)",
        (label_time(bucket("hour", midnight)),),
    )
    last = NEXT + ONE_DAY
    run = scene.said_by({(DAY, "/"): 1, (last, "/"): 2})
    done = scene.correct(run, start=DAY, end=last)
    assert done.notices == [f"{ACROSS}: {DAY} to {NEXT}"]
    assert scene.marks(run) == {last}
    assert scene.store.totals.total("views") == 5


ACROSS = "left out (a bucket is partly in another day)"


@pytest.mark.parametrize("delete_missing", [False, True])
@pytest.mark.parametrize("resolution", ["minute", "quarter", "hour", "day"])
def test_all_widths_of_a_day_are_set(scene: Scene, resolution: Any, delete_missing: bool) -> None:
    """Totals of the sources stand in the buckets that these were read in."""
    at = minute(DAY, 600)
    for each in ("day", "minute", "quarter", "hour", resolution):
        scene.set_counter(resolution=each)
        scene.count({(at, "/"): 1, (at + 15, "/"): 1, (at, "/gone"): 1, (minute(NEXT), "/"): 1})
    said = {(at, "/"): 10, (at + 15, "/"): 20, (at, "/new"): 5}
    run = scene.said_by(said)
    would = scene.would(said, start=DAY, end=DAY, delete_missing=delete_missing)
    done = scene.correct(run, start=DAY, end=DAY, delete_missing=delete_missing)
    found = scene.amounts()
    left = 0 if delete_missing else 5
    assert scene.store.totals.total("views", start=DAY, end=DAY) == 35 + left
    of_day = {place: amount for place, amount in found.items() if place[0] < minute(NEXT, 0) * 60}
    wanted = {(bucket(resolution, at), "/new"): 5}
    for minutes, amount in (0, 10), (15, 20):
        place = bucket(resolution, at + minutes), "/"
        wanted[place] = wanted.get(place, 0) + amount
    assert {place: n for place, n in of_day.items() if place[1] != "/gone"} == wanted
    assert sum(of_day.values()) == 35 + left
    assert scene.store.totals.total("views", start=NEXT, end=NEXT) == 5
    assert (done.corrections, done.amount) == (would.corrections, would.amount)
    assert {(one.bucket, one.width, one.key): (one.had, one.should_be) for one in would.drift} == {
        (label_time(label), width_of(label), key): what
        for (label, key), what in scene.drift(run).items()
    }
    again = scene.said_by(said)
    assert scene.correct(again, start=DAY, end=DAY).corrections == 0
    scene.undo(run)
    assert scene.store.totals.total("views", start=DAY, end=DAY) == 15


def test_days_in_months_are_left_out(scene: Scene) -> None:
    days = [date(2026, 2, 10), date(2026, 2, 27), date(2026, 2, 28), date(2026, 3, 1)]
    scene.set_counter(keep="day=30d")
    scene.session.execute("UPDATE counter SET rolled_month = '2026-03-01' WHERE name = 'views'")
    run = scene.said_by({(day, "/"): 3 for day in days})
    done = scene.correct(run)
    assert scene.totals() == on_days({(days[-1], "/"): 3})
    assert done.notices == [
        "left out (rolled up to months): 2026-02-10 to 2026-02-28",
    ]
    assert scene.marks(run) == {days[-1]}


def test_days_with_overflow_are_not_reconciled_unless_all_else_goes(scene: Scene) -> None:
    scene.set_counter(max_keys=1)
    scene.count({(DAY, "/a"): 1, (DAY, "/b"): 2, (NEXT, "/a"): 4})
    said = {(DAY, "/a"): 1, (DAY, "/b"): 3}
    with pytest.raises(BackfillError, match=f"exceeded its maximum of keys on {DAY}: .*would be"):
        scene.correct(scene.said_by(said))
    before = {(DAY, "/a"): 1, (DAY, OVERFLOW): 2, (NEXT, "/a"): 4}
    assert scene.totals() == on_days(before)
    scene.correct(scene.said_by({(NEXT, "/a"): 5}))  # nothing is in the way there
    scene.correct(scene.said_by(said), delete_missing=True)
    assert scene.totals() == on_days(
        {(DAY, "/a"): 1, (DAY, "/b"): 3, (DAY, OVERFLOW): 0, (NEXT, "/a"): 5}
    )
    scene.correct(scene.said_by(said))  # nothing is left of it


def test_negative_totals_and_those_beyond_64_bits(scene: Scene) -> None:
    had = {(DAY, "down"): 5, (DAY, "most"): MAX, (DAY, "least"): MIN, (DAY, "far"): MIN}
    scene.count(had)
    said = {(DAY, "down"): -7, (DAY, "most"): 3 * MAX, (DAY, "least"): -1, (DAY, "far"): MAX}
    run = scene.said_by(said)
    done = scene.correct(run)
    assert scene.totals() == on_days(said)
    assert (done.corrections, done.notices) == (4, [])
    scene.count({(DAY, "most"): MAX})
    scene.undo(run)
    assert scene.totals() == on_days({**had, (DAY, "most"): 2 * MAX})


def test_a_stop_after_the_last_day_of_a_comparison_is_none(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[date] = []
    make = Drift.make

    def made(day: date, *difference: Any) -> Drift:
        compared.append(day)
        return make(day, *difference)

    monkeypatch.setattr(Drift, "make", made)
    said = {(date(2026, 3, day), "/"): day for day in (1, 2)}
    asked = {"start": date(2026, 3, 1), "end": date(2026, 3, 2)}
    assert not scene.would(said, stop=lambda: len(compared) == 1, **asked).finished
    compared.clear()
    done = scene.would(said, stop=lambda: len(compared) == 2, **asked)
    assert (done.corrections, done.finished) == (2, True)


def test_it_stops_when_told_and_another_run_goes_on(scene: Scene) -> None:
    said = {(date(2026, 3, day), "/"): day for day in range(1, 6)}
    seen: list[Progress] = []
    asked = [False] * 3
    run = scene.said_by(said)
    done = scene.correct(run, on_progress=seen.append, stop=lambda: not asked or asked.pop())
    assert not done.finished
    assert 0 < done.corrections < 5
    assert seen[0] == Progress(doing="correcting", source="2026-03-01", done=0, size=5)
    assert scene.correct(scene.said_by(said)).corrections == 5 - done.corrections
    assert scene.totals() == on_days(said)


@pytest.mark.parametrize("state", ["undoing", "undone", "done", "deleted"])
def test_a_run_that_somebody_ended_corrects_nothing(scene: Scene, state: str) -> None:
    run = scene.said_by({(DAY, "/"): 1})
    scene.session.execute("UPDATE backfill_run SET state = %s", (state,))
    with pytest.raises(BackfillError, match=f"backfill {run} is {state} now"):
        scene.correct(run)
    assert scene.totals() == {}
    assert scene.marks(run) == set()


def test_tracked_counters_are_refused(scene: Scene) -> None:
    track(scene.session, "views")
    run = scene.new_run()
    with pytest.raises(TrackedCounter, match="tracked table"):
        scene.correct(run)
    with pytest.raises(TrackedCounter, match="tracked table"):
        scene.would({})


def test_while_sources_are_read_the_time_zone_stays(scene: Scene) -> None:
    run = scene.said_by({(DAY, "/"): 1})
    with pytest.raises(ValueError, match="time zone"):
        scene.set_counter(time_zone="Asia/Tokyo")
    assert scene.correct(run).corrections == 1


def sealed(client: redis.Redis) -> Sealed:
    at = now_ms(client)
    return Sealed(new_entry_id(at), at, encode_rows([("views", "/", minute(DAY), 1)]))


def test_it_begins_when_what_was_in_the_streams_is_counted(
    redis_client: redis.Redis, redis_url: str
) -> None:
    redis_client.set(PARTITIONS_KEY, 3)
    send(redis_client, sealed(redis_client), partition=1)
    send(redis_client, sealed(redis_client), partition=2)
    looks: list[Progress] = []

    def work(progress: Progress) -> None:
        # A worker that counts one entry at a time, while others come in.
        looks.append(progress)
        stream = stream_key(len(looks))
        ((oldest, _),) = command(redis_client, "XRANGE", stream, "-", "+", "COUNT", 1)
        redis_client.xdel(stream, oldest)
        send(redis_client, sealed(redis_client), partition=len(looks))

    before = now_ms(redis_client)
    t0 = reconcile.begin(redis_url, options(), on_progress=work)
    assert t0 is not None
    assert before <= t0 <= now_ms(redis_client)
    assert [one.doing for one in looks] == ["waiting", "waiting"]
    assert redis_client.xlen(stream_key(1)) == 1


def test_without_a_worker_it_does_not_begin(redis_client: redis.Redis, redis_url: str) -> None:
    send(redis_client, sealed(redis_client))
    with pytest.raises(BackfillError, match=r"after 0 s, .* run a worker"):
        reconcile.begin(redis_url, options(wait_s=0.0))
    assert reconcile.begin(redis_url, options(), stop=lambda: True) is None
    with pytest.raises(BackfillError, match="--redis-url"):
        reconcile.begin(None, options())
