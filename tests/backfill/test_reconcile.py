"""Reconciling: totals are what the sources say, for the buckets that they are the truth for."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
import redis

from countersink.backfill import reconcile
from countersink.backfill.errors import BackfillError, ReconcileStopped
from countersink.backfill.options import Progress
from countersink.backfill.reconcile import correction
from countersink.backfill.reconcile.correction import Corrected
from countersink.backfill.run import clear
from countersink.store import Store
from countersink.store.apply import dead
from countersink.store.apply.apply import Applier
from countersink.store.apply.control import bump
from countersink.store.connection import Session
from countersink.stream.connection import command
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.backfill.truths import (
    DAY,
    NEXT,
    count,
    drift,
    hour_ago,
    marks,
    new_run,
    on_days,
    options,
    said_by,
    say,
    totals,
)
from tests.store.helpers import MAX, MIN, entry, ledger, minute
from tests.store.policy_rows import put_policies
from tests.support.traffic import now_ms, send

pytestmark = [pytest.mark.servers("mariadb", "mysql"), pytest.mark.usefixtures("store")]


def corrected(url: str, run: int, t0: int | None = None, **asked: Any) -> Corrected:
    return reconcile.correct(url, run, options(**asked), hour_ago() if t0 is None else t0)


def test_totals_become_what_the_sources_say(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    count(applier, {(DAY, "/lost"): 2, (DAY, "/right"): 5, (DAY, "/twice"): 8, (NEXT, "/"): 1})
    run = new_run(session)
    say(session, run, {(DAY, "/lost"): 2, (DAY, "/right"): 5, (DAY, "/new"): 7})
    say(session, run, {(DAY, "/lost"): 1, (DAY, "/twice"): 4})
    done = corrected(mysql_url, run)
    assert (done.corrections, done.amount, done.finished) == (3, 1 + 7 - 4, True)
    assert totals(session) == on_days(
        {
            (DAY, "/lost"): 3,
            (DAY, "/right"): 5,
            (DAY, "/twice"): 4,
            (DAY, "/new"): 7,
            (NEXT, "/"): 1,
        }
    )
    assert {key: what for (_, key), what in drift(session, run).items()} == {
        "/lost": (2, 3),
        "/new": (0, 7),
        "/twice": (8, 4),
    }
    assert marks(session, run) == {minute(DAY, 0) * 60}
    assert ledger(session) == {"views": 20}
    slots = session.query("SELECT DISTINCT slot FROM counter_slot WHERE slot <> 17")
    assert all(512 <= slot < 640 for (slot,) in slots)
    # What the sources said is not kept for ever.
    assert session.query("SELECT COUNT(*) FROM backfill_truth") == [(0,)]
    assert session.query("SELECT corrections, amount FROM backfill_run") == [(3, 4)]
    assert done.notices == ()


def test_what_is_right_already_stays(session: Session, applier: Applier, mysql_url: str) -> None:
    count(applier, {(DAY, "/"): 5})
    for expected in (1, 0):
        run = said_by(session, {(DAY, "/"): 7})
        assert corrected(mysql_url, run).corrections == expected
        assert totals(session) == on_days({(DAY, "/"): 7})


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
@pytest.mark.parametrize("delete_missing", [False, True])
def test_keys_that_the_sources_do_not_have_go_to_zero_only_when_asked(
    session: Session,
    applier: Applier,
    mysql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    delete_missing: bool,
) -> None:
    monkeypatch.setattr(correction, "ROWS", rows)
    other = Applier(mysql_url, 18)
    for one in applier, other:
        count(one, {(DAY, key): 10 for key in ("", "b", "c", "d", "f", "ä", "zz")})
    other.close()
    run = said_by(
        session, {(DAY, "a"): 1, (DAY, "c"): 3, (DAY, "d"): 20, (DAY, "é"): 5, (DAY, "y"): 0}
    )
    done = corrected(mysql_url, run, delete_missing=delete_missing)
    left = 0 if delete_missing else 20
    expected = {
        (DAY, key): amount
        for key, amount in {
            "": left,
            "a": 1,
            "b": left,
            "c": 3,
            "d": 20,
            "f": left,
            "ä": left,
            "é": 5,
            "zz": left,
        }.items()
    }
    assert totals(session) == on_days(expected)
    assert done.corrections == len(drift(session, run)) == (8 if delete_missing else 3)


def test_with_a_range_of_days_all_buckets_in_it_are_set(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    before, after = date(2026, 3, 12), date(2026, 3, 17)
    count(applier, {(day, "/"): 4 for day in (before, DAY, NEXT, after)})
    run = said_by(session, {(DAY, "/"): 5})
    asked: dict[str, Any] = {"start": date(2026, 3, 13), "end": date(2026, 3, 16)}
    done = corrected(mysql_url, run, delete_missing=True, **asked)
    assert done.notices == ()
    assert totals(session) == on_days(
        {(before, "/"): 4, (DAY, "/"): 5, (NEXT, "/"): 0, (after, "/"): 4}
    )
    assert marks(session, run) == {minute(date(2026, 3, day), 0) * 60 for day in range(13, 17)}
    # Without --delete-missing they are marked all the same, and stay as they are.
    run = said_by(session, {(DAY, "/"): 5})
    corrected(mysql_url, run, **asked)
    assert len(marks(session, run)) == 4


def test_what_was_accepted_before_and_comes_later_is_not_counted_on_top(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    count(applier, {(DAY, "/"): 1})
    t0 = hour_ago()
    run = said_by(session, {(DAY, "/"): 9})
    corrected(mysql_url, run, t0)
    spooled = entry(
        [(0, "views", "/", minute(DAY), 8), (1, "views", "/", minute(NEXT), 2)],
        id=bytes.fromhex(new_entry_id(t0 - 86_400_000)),
    )
    assert applier.apply([spooled]).dead == 1
    assert totals(session) == on_days({(DAY, "/"): 9, (NEXT, "/"): 2})
    assert dead.count(session) == {"reconciled": 1}
    assert f"backfill {run} " in dead.list_rows(session)[0].detail
    count(applier, {(DAY, "/"): 1})  # sent now
    assert totals(session) == on_days({(DAY, "/"): 10, (NEXT, "/"): 2})


def test_buckets_that_were_open_when_it_began_are_left_out(
    store: Store, session: Session, applier: Applier, mysql_url: str
) -> None:
    store.counters.set("views", resolution="hour")
    noon = minute(DAY, 720)
    run = said_by(session, {(noon - 60, "/"): 1, (noon, "/"): 2, (noon + 600, "/"): 3})
    ends = (noon + 60) * 60_000
    done = corrected(mysql_url, run, ends + 900_000 - 1)
    assert totals(session) == {((noon - 60) * 60, "/"): 1}
    assert marks(session, run) == {(noon - 60) * 60}
    assert f"not over for 900 s when this began: {DAY}" in done.notices[0]
    run = said_by(session, {(noon, "/"): 2})
    corrected(mysql_url, run, ends + 10_000, grace_s=10.0)
    assert totals(session)[noon * 60, "/"] == 2


@pytest.mark.parametrize(
    ("zone", "resolution", "first", "last"),
    [
        ("America/New_York", "day", minute(DAY, 4 * 60), minute(NEXT, 4 * 60) - 1),
        ("America/New_York", "hour", minute(DAY, 4 * 60), minute(NEXT, 4 * 60) - 1),
        ("Asia/Kathmandu", "quarter", minute(DAY, 0) - 345, minute(DAY, 0) + 1095 - 1),
        # The day is an hour short.
        (
            "Europe/Berlin",
            "quarter",
            minute(date(2026, 3, 28), 23 * 60),
            minute(date(2026, 3, 29), 22 * 60) - 1,
        ),
    ],
)
def test_days_are_those_of_the_counters_zone(
    store: Store,
    session: Session,
    applier: Applier,
    mysql_url: str,
    zone: str,
    resolution: Any,
    first: int,
    last: int,
) -> None:
    store.counters.set("views", time_zone=zone, resolution=resolution)
    minutes = (first - 1, first, last, last + 1)
    count(applier, {(at, "/"): 5 for at in minutes[:1]} | {(at, "/x"): 5 for at in minutes[1:]})
    day = datetime.fromtimestamp((first + 600) * 60, UTC).date()
    run = said_by(session, {(first, "/"): 1, (last, "/"): 2})
    corrected(mysql_url, run, start=day, end=day, delete_missing=True)
    assert store.totals.daily("views", key="/", start=day, end=day) == [(day, 3)]
    assert store.totals.total("views", key="/x") == 5  # of the day after
    assert store.totals.total("views", key="/") == 5 + 3


def test_days_whose_buckets_go_beyond_them_are_refused(session: Session, mysql_url: str) -> None:
    # As by policies from before this was refused when a counter was made.
    put_policies(session, "views", [(0, "Asia/Kolkata", "hour")])
    run = said_by(session, {(DAY, "/"): 1})
    with pytest.raises(BackfillError, match="in whole buckets"):
        corrected(mysql_url, run, start=DAY, end=DAY)
    run = said_by(session, {(DAY, "/"): 1})
    put_policies(session, "views", [(0, "Asia/Kolkata", "quarter")])
    for last, complaint in ((date(9999, 12, 30), "fewer days"), (date.max, "has no end")):
        run = said_by(session, {(DAY, "/"): 1})
        with pytest.raises(BackfillError, match=complaint):
            corrected(mysql_url, run, start=date(1, 1, 1), end=last)


def test_a_change_of_policy_in_the_days_is_no_matter(
    store: Store, session: Session, applier: Applier, mysql_url: str
) -> None:
    change = minute(DAY, 600)
    put_policies(session, "views", [(0, "UTC", "day"), (change, "Europe/Berlin", "quarter")])
    count(applier, {(change - 1, "/"): 1, (change, "/"): 1, (change + 15, "/gone"): 1})
    run = said_by(session, {(change - 1, "/"): 10, (change, "/"): 20})
    corrected(mysql_url, run, start=DAY, end=DAY, delete_missing=True)
    assert set(totals(session).values()) == {10, 20, 0}
    assert store.totals.total("views", start=DAY, end=DAY) == 30


def test_days_in_months_are_left_out(
    store: Store, session: Session, applier: Applier, mysql_url: str
) -> None:
    store.counters.set("views", keep_days=30)
    session.execute("UPDATE counter SET rolled_up_to = %s WHERE name = 'views'", (NEXT,))
    days = [date(2026, 3, 10), date(2026, 3, 13), DAY, NEXT]
    run = said_by(session, {(day, "/"): 3 for day in days})
    done = corrected(mysql_url, run)
    assert totals(session) == on_days({(NEXT, "/"): 3})
    assert done.notices[0] == (
        "left out, as their days are rolled up to months: 2026-03-10, 2026-03-13 to 2026-03-14"
    )
    assert marks(session, run) == {minute(NEXT, 0) * 60}


def test_negative_totals_and_the_ends_of_64_bits(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    count(applier, {(DAY, "down"): 5, (DAY, "most"): MAX, (DAY, "least"): MIN, (DAY, "far"): MIN})
    run = said_by(
        session, {(DAY, "down"): -7, (DAY, "most"): MAX, (DAY, "least"): -1, (DAY, "far"): MAX}
    )
    done = corrected(mysql_url, run)
    assert totals(session) == on_days(
        {(DAY, "down"): -7, (DAY, "most"): MAX, (DAY, "least"): -1, (DAY, "far"): MIN}
    )
    assert done.corrections == 2
    assert "1 keys could not be set, such as 'far' of 2026-03-14: " in done.notices[0]


def test_a_dry_run_says_the_same_and_changes_nothing(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    count(applier, {(DAY, "/a"): 5, (DAY, "/b"): 1, (NEXT, "/a"): 1})
    run = said_by(session, {(DAY, "/a"): 7, (NEXT, "/a"): 1, (NEXT, "/c"): 2})
    before = totals(session), ledger(session)
    asked = options(delete_missing=True)
    would = correction.compare(mysql_url, run, asked, hour_ago())
    assert [(one.day, one.key, one.had, one.should_be, one.delta) for one in would.drift] == [
        (DAY, "/a", 5, 7, 2),
        (DAY, "/b", 1, 0, -1),
        (NEXT, "/c", 0, 2, 2),
    ]
    assert (totals(session), ledger(session)) == before
    assert (marks(session, run), drift(session, run)) == (set(), {})
    done = reconcile.correct(mysql_url, run, asked, hour_ago())
    assert (done.corrections, done.amount) == (would.corrections, would.amount) == (3, 3)


def test_it_stops_when_told_and_another_run_goes_on(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    said = {(date(2026, 3, day), "/"): day for day in range(1, 6)}
    seen: list[Progress] = []
    asked = [False] * 3
    run = said_by(session, said)
    done = reconcile.correct(
        mysql_url,
        run,
        options(),
        hour_ago(),
        on_progress=seen.append,
        stop=lambda: not asked or asked.pop(),
    )
    assert not done.finished
    assert 0 < done.corrections < 5
    assert seen[0] == Progress(doing="correcting", source="2026-03-01", done=0, size=5)
    assert corrected(mysql_url, said_by(session, said)).corrections == 5 - done.corrections
    assert totals(session) == on_days(said)


@pytest.mark.parametrize("state", ["undoing", "undone", "done", "deleted"])
def test_a_run_that_somebody_ended_corrects_nothing(
    session: Session, mysql_url: str, state: str
) -> None:
    run = said_by(session, {(DAY, "/"): 1})
    session.execute("UPDATE backfill_run SET state = %s", (state,))
    with pytest.raises(BackfillError, match=f"backfill {run} is {state} by now"):
        corrected(mysql_url, run)
    assert totals(session) == {}
    assert marks(session, run) == set()


def test_tracked_counters_are_refused(session: Session, mysql_url: str) -> None:
    session.execute(
        "INSERT INTO tracked_table (counter, table_schema, table_name, by_columns, app_slots,"
        " triggers, created) VALUES ('views', 'app', 'orders', '[]', 16, 'x', NOW(3))"
    )
    run = new_run(session)
    with pytest.raises(BackfillError, match="tracked table"):
        corrected(mysql_url, run)
    with pytest.raises(BackfillError, match="tracked table"):
        correction.compare(mysql_url, run, options(), hour_ago())


def test_sources_read_by_other_policies_are_refused(
    store: Store, session: Session, mysql_url: str
) -> None:
    run = said_by(session, {(DAY, "/"): 1})
    # Nothing has been counted, so this is for all time.
    store.counters.set("views", time_zone="Asia/Tokyo")
    with pytest.raises(BackfillError, match="time zone or resolution of views was changed"):
        say(session, run, {(DAY, "/"): 1})
    with pytest.raises(BackfillError, match="time zone or resolution of views was changed"):
        corrected(mysql_url, run)
    assert totals(session) == {}
    run = said_by(session, {(DAY, "/"): 1})
    assert corrected(mysql_url, run).corrections == 1


def test_a_policy_that_begins_later_does_not_matter(
    store: Store, session: Session, mysql_url: str, applier: Applier
) -> None:
    count(applier, {(DAY, "/"): 1})
    run = said_by(session, {(DAY, "/"): 2})
    store.counters.set("views", resolution="hour", start=datetime(2100, 1, 1, tzinfo=UTC))
    assert corrected(mysql_url, run).corrections == 1


def test_the_truth_of_runs_that_ended_before_is_forgotten(session: Session, mysql_url: str) -> None:
    old = said_by(session, {(DAY, "/"): 1})
    session.execute("UPDATE backfill_run SET state = 'failed'")
    beside = said_by(session, {(DAY, "/"): 1})
    run = said_by(session, {(DAY, "/"): 1})
    clear(session, "views")
    assert session.query("SELECT run FROM backfill_truth ORDER BY run") == [(beside,), (run,)]
    corrected(mysql_url, run)
    assert session.query("SELECT run FROM backfill_truth") == [(beside,)]
    assert old < beside < run


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
    assert before <= t0 <= now_ms(redis_client)
    assert [one.doing for one in looks] == ["waiting", "waiting"]
    assert redis_client.xlen(stream_key(1)) == 1


def test_without_a_worker_it_does_not_begin(redis_client: redis.Redis, redis_url: str) -> None:
    send(redis_client, sealed(redis_client))
    with pytest.raises(BackfillError, match=r"after 0 s, .* a worker must be running"):
        reconcile.begin(redis_url, options(wait_s=0.0))
    with pytest.raises(ReconcileStopped):
        reconcile.begin(redis_url, options(), stop=lambda: True)
    with pytest.raises(BackfillError, match="--redis-url"):
        reconcile.begin(None, options())


def test_marks_are_seen_by_workers_at_once(
    session: Session, applier: Applier, mysql_url: str
) -> None:
    ((before,),) = session.query("SELECT policy_version FROM control")
    corrected(mysql_url, said_by(session, {(DAY, "/"): 1}))
    ((after,),) = session.query("SELECT policy_version FROM control")
    assert after == before + 1
    with session.transaction():
        bump(session)
