"""The ledger is equal to the rows, in sums and checksums, whatever anybody does."""

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from threading import Event

import pytest

from countersink.backfill.run import backfill
from countersink.backfill.undo import undo
from countersink.schedules.jobs.compaction import CompactOptions, compact
from countersink.schedules.jobs.move import open_tables
from countersink.schedules.jobs.retention import roll_up
from countersink.store import Store, UnknownCounter
from countersink.store.apply.apply import Applier
from countersink.store.connection import Session, rerun
from countersink.store.counters import buckets
from countersink.store.in_app.connection import own_slot
from countersink.store.ledger.postings import Posting, fold, foldable, post
from countersink.store.verify import open_session, verify
from tests.backfill.helpers import NOON, add, line, options, write
from tests.store.app import open_app, run
from tests.store.helpers import entry
from tests.support.ledger import held, posted
from tests.support.waiting import eventually

pytestmark = pytest.mark.servers("mariadb", "mysql")

KEYS = ["", "/a", "/b", "ä", "/" + "long" * 60]
MAX = 2**63 - 1


class Play:
    """Random acts on two counters, one of which goes by hours at first."""

    def __init__(
        self, mysql_url: str, redis_url: str, store: Store, directory: Path, draw: Random
    ) -> None:
        self.url, self.store, self.directory, self.draw = mysql_url, store, directory, draw
        self.redis_url = redis_url
        self.reconciled = 0
        self.app = open_app(mysql_url, autocommit=draw.random() < 0.5)
        zone = draw.choice(("UTC", "Europe/Berlin"))
        store.counters.set("hours", time_zone=zone, resolution="hour")

    def counter(self) -> str:
        return self.draw.choice(("views", "hours"))

    def at(self) -> datetime:
        return NOON + timedelta(hours=self.draw.randrange(-900, 900))

    def apply(self) -> None:
        applier = Applier(self.url, self.draw.randrange(1, 256))
        applier.apply(
            [
                entry(
                    [
                        (
                            place,
                            self.counter(),
                            self.draw.choice(KEYS),
                            int(self.at().timestamp()) // 60,
                            self.draw.choice((1, -3, 0, 2**40, MAX)),
                        )
                        for place in range(8)
                    ]
                )
            ]
        )
        applier.close()

    def count_in_app(self) -> None:
        if self.draw.random() < 0.5:
            self.app.begin()
        keys = self.draw.sample(KEYS, 2)
        amounts = {key: self.draw.randrange(-5, 9) for key in keys}
        self.store.increment_many(self.app, self.counter(), amounts, at=self.at())
        if self.draw.random() < 0.3:
            self.store.delete(self.app, self.counter(), keys[0])
        self.app.rollback() if self.draw.random() < 0.3 else self.app.commit()
        with open_tables(self.url) as session:
            session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 1 HOUR")

    def compact(self) -> None:
        before = self.draw.choice((None, date(2026, 3, 20), date(2027, 1, 1)))
        compact(partial(open_tables, self.url), CompactOptions(before=before, threshold=1))

    def roll_up(self) -> None:
        kept = (datetime.now(UTC).date() - date(2026, 3, 14)).days
        counter, age = self.counter(), max(2, kept + self.draw.randrange(-50, 40))
        finer = f"hour={age - 1}d," if counter == "hours" and self.draw.random() < 0.5 else ""
        self.store.counters.set(counter, keep=f"{finer}day={age}d")
        roll_up(partial(open_tables, self.url))

    def delete(self) -> None:
        try:
            self.store.counters.delete(self.counter(), self.draw.choice(KEYS))
        except UnknownCounter:
            return

    def log(self) -> Path:
        lines = [
            line(f"/{self.draw.randrange(3)}", at=self.at().replace(day=14, month=3))
            for _ in range(5)
        ]
        return write(self.directory / f"{self.draw.random()}.log", b"".join(sorted(lines)))

    def backfill(self) -> None:
        add(self.url, self.log(), counter=self.counter())

    def reconcile(self) -> None:
        day = NOON.date()
        asked = options(
            self.log(),
            mode="reconcile",
            counter=self.counter(),
            start=day,
            end=day,
            delete_missing=self.draw.random() < 0.5,
        )
        self.reconciled += backfill(self.url, asked, redis_url=self.redis_url).corrections

    def undo(self) -> None:
        with open_tables(self.url) as session:
            runs = session.query("SELECT id FROM backfill_run WHERE state = 'done'")
        if runs:
            undo(self.url, int(self.draw.choice(runs)[0]))

    def change_resolution(self) -> None:
        resolution = self.draw.choice(buckets.RESOLUTIONS)
        self.store.counters.set("hours", resolution=resolution)


def test_rows_that_no_application_has_touched_for_an_hour_are_folded(
    mysql_url: str, store: Store, session: Session
) -> None:
    """But for one that an open transaction adds to, and those of the last hour."""
    with open_app(mysql_url) as idle, open_app(mysql_url) as app, open_app(mysql_url) as busy:
        for connection in (idle, app):
            store.increment(connection, "views", "/a", 5, at=NOON)
            connection.commit()
        session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
        store.increment(busy, "views", "/a", 100, at=NOON)
        busy.commit()
        store.increment(app, "views", "/a", 7, at=NOON)
        opened = partial(open_tables, mysql_url)
        compact(opened, CompactOptions())
        assert _amounts(session) == [(0, 5), (1, 5), (1, 100)]
        assert posted(session) == held(session)
        app.commit()
        compact(opened, CompactOptions())
        assert _amounts(session) == [(0, 5), (1, 12), (1, 100)]
        assert foldable(session) == []
    with open_app(mysql_url) as again:
        store.increment(again, "views", "/a", 1, at=NOON)
        again.commit()
    assert posted(session) == held(session)
    assert store.totals.total("views") == 118


def test_a_fold_waits_for_nobody_and_nobody_for_it(
    mysql_url: str, store: Store, session: Session
) -> None:
    """Many idle rows beside open transactions of an application and of a worker."""
    idle = [open_app(mysql_url) for _ in range(12)]
    for connection in idle:
        store.increment(connection, "views", "/a", 1, at=NOON)
        connection.commit()
    session.execute("UPDATE counter_ledger SET posted_at = posted_at - INTERVAL 61 MINUTE")
    with (
        open_app(mysql_url) as app,
        open_tables(mysql_url) as worker,
        open_tables(mysql_url) as own,
    ):
        store.increment(app, "views", "/b", 1, at=NOON)
        store.increment(idle[3], "views", "/b", 1, at=NOON)
        with worker.transaction():
            post(worker, 9, [("views", Posting())])
            own.execute("SET SESSION innodb_lock_wait_timeout = 1")
            assert fold(own, "views", -1) is not None
            assert _amounts(session) == [(0, 11), (1, 1)]
        for connection in (app, idle[3]):
            connection.commit()
    for connection in idle:
        connection.close()
    assert posted(session) == held(session)


def _amounts(session: Session) -> list[tuple[int, int]]:
    """Of rows of the ledger, those of slot 0 first."""
    found = session.query("SELECT slot > 0, amount FROM counter_ledger ORDER BY 1, 2")
    return [(int(own), int(amount)) for own, amount in found]


def test_two_fold_at_once_while_applications_count(mysql_url: str, store: Store) -> None:
    """Every connection is a new one, whose row is old at once."""
    stopping = Event()

    def count() -> int:
        done = 0
        while not stopping.is_set():
            with open_app(mysql_url) as app:
                store.increment(app, "views", f"/{done % 3}", 1, at=NOON)
                run(
                    app,
                    "UPDATE counter_ledger SET posted_at = '2026-01-01'"
                    f" WHERE counter = 'views' AND slot = {own_slot()}",
                )
                app.commit()
            done += 1
        return done

    def fold_all() -> int:
        folded = 0
        with open_tables(mysql_url) as session:
            while not stopping.is_set():
                after: int | None = -1
                while after is not None:
                    after = rerun(partial(fold, session, "views", after))
                    folded += after is not None
        return folded

    with ThreadPoolExecutor(4) as pool:
        counting = [pool.submit(count) for _ in range(2)]
        folding = [pool.submit(fold_all) for _ in range(2)]
        try:
            eventually(
                lambda: any(map(Future.done, (*counting, *folding))) or _folded(mysql_url) > 20,
                timeout=100,
            )
        finally:
            stopping.set()
        counted = sum(each.result(60) for each in counting)
        assert all(each.result(60) for each in folding)
    with open_session(mysql_url) as session:
        assert posted(session) == held(session) != {}
        assert verify(session).differences == []
    assert store.totals.total("views") == counted


def _folded(mysql_url: str) -> int:
    """Counts of 1 that were folded."""
    with open_session(mysql_url) as session:
        ((found,),) = session.query(
            "SELECT COALESCE(SUM(amount), 0) FROM counter_ledger WHERE slot = 0"
        )
    return int(found)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long("more random acts")) for n in (1, 2))]
)
def test_random_acts_keep_rows_and_ledgers_equal(
    mysql_url: str, redis_url: str, store: Store, session: Session, tmp_path: Path, seed: int
) -> None:
    draw = Random(seed)
    play = Play(mysql_url, redis_url, store, tmp_path, draw)
    acts = [play.apply, play.count_in_app, play.compact, play.roll_up, play.delete, play.backfill]
    acts += [play.undo, play.change_resolution, play.reconcile]
    for _ in range(25):
        act = draw.choice(acts)
        act()
        rows, said = held(session), posted(session)
        for counter in rows.keys() | said.keys():
            assert rows.get(counter, (0, 0)) == said.get(counter, (0, 0)), act
    with open_session(mysql_url) as verifying:
        assert verify(verifying).differences == []
    assert play.reconciled
    play.app.close()
