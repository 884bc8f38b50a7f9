"""Applications count by each driver while settings change, are stopped between their settings and
their rows, and hold transactions open over a midnight: each event is counted once, in each
breakdown that has begun.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import pytest

from countersink.counting.counters.buckets import RESOLUTIONS
from countersink.database.errors import Conflict
from countersink.database.session import Session
from countersink.database.sessions import open_tables
from countersink.store import Store
from countersink.store.verify import verify
from countersink.transactions import MAX_AGE_S, Clocks
from tests.drivers.test_drivers import DRIVERS, Open
from tests.support.app_connection import commit_one, open_app
from tests.support.entries import keys, together
from tests.support.waiting import eventually

GERMAN = {"country": "DE"}
ROUNDS = 25


@pytest.fixture
def verifying(mysql_url: str) -> Iterator[Session]:
    with open_tables(mysql_url, isolation="REPEATABLE READ") as opened:
        yield opened


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("opening", DRIVERS)
def test_everything_is_counted_once_beside_changes(
    opening: Open, store: Store, session: Session, mysql_url: str, verifying: Session
) -> None:
    """The clocks of the applications run fast, so that they read settings again and again."""
    store.counters.set("orders", time_zone="Asia/Kathmandu", dimensions=["country"])
    with open_app(mysql_url) as app:
        commit_one(store, app, "orders", "first", 0)
    counting = [True]

    def count() -> None:
        begun = time.monotonic()

        def fast() -> Clocks:
            ahead = (time.monotonic() - begun) * MAX_AGE_S * 20
            now = Clocks.now()
            return Clocks(now.monotonic + ahead, now.wall + ahead)

        with Store(mysql_url) as own, closing(opening(mysql_url)) as app:
            own._increments._settings._clocks = fast
            for number in range(ROUNDS):
                while True:
                    try:
                        own.increment(app.connection, "orders", GERMAN)
                        own.increment(app.connection, "orders", f"k{number % 3}", 10)
                        app.commit()
                        break
                    except Exception as error:
                        app.rollback()
                        if getattr(error, "errno", error.args[0]) not in (1213, 1205, 1020):
                            raise

    def change() -> None:
        turn = 0
        with Store(mysql_url) as own:
            while counting:
                turn += 1
                resolution = [each for each in RESOLUTIONS if each != "hour"][turn % 3]
                with suppress(Conflict):
                    own.counters.set("orders", resolution=resolution, app_slots=1 + turn % 9)
                if turn == 2:
                    own.counters.set("orders", breakdowns=["country"])
                with pytest.raises((ValueError, Conflict)):
                    own.counters.set("orders", time_zone="UTC")

    def count_all() -> None:
        together(count, count)
        counting.clear()

    together(count_all, change)
    assert store.totals.total("orders") == 2 * ROUNDS * 11
    assert keys(session, "orders")[b""] == 2 * ROUNDS
    assert verify(verifying).differences == []


def test_stopped_between_its_settings_and_its_rows_an_application_counts_all_the_same(
    store: Store, session: Session, mysql_url: str, verifying: Session
) -> None:
    """By SIGSTOP, for as long as it takes until a breakdown has begun that it knows nothing of."""
    store.counters.set("orders", dimensions=["country"])
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    minute_before = midnight - timedelta(minutes=1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Store(mysql_url) as own, open_app(mysql_url) as app:
                own.increment(app, "orders", GERMAN, at=minute_before)
                app.commit()
                settings = own._increments._settings.for_event("orders", minute_before)
                own._increments._settings.for_event = lambda *_: settings  # type: ignore[method-assign]
                os.write(writer, b"x")
                os.kill(os.getpid(), signal.SIGSTOP)
                own.increment(app, "orders", GERMAN)
                app.commit()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(reader, 1) == b"x"
    eventually(lambda: os.waitpid(child, os.WUNTRACED | os.WNOHANG)[0] == child)
    made = store.counters.set("orders", resolution="minute", breakdowns=["country"]).breakdowns[0]
    # As if eleven minutes had gone by, and with them the midnight at which it begins.
    session.execute(
        "UPDATE counter SET since = %s WHERE name = %s", (midnight.replace(tzinfo=None), made.name)
    )
    session.execute("UPDATE control SET catalog_version = catalog_version + 1")
    with open_app(mysql_url) as app, Store(mysql_url) as other:
        commit_one(other, app, "orders", GERMAN, 100, at=midnight)
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    assert keys(session, "orders") == {b"": 102}
    assert keys(session, made.name) == {b"DE": 100}
    assert verify(verifying).differences == []


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("opening", DRIVERS)
def test_a_transaction_that_is_open_over_a_midnight_counts_on_both_days(
    opening: Open, store: Store, session: Session, mysql_url: str, verifying: Session
) -> None:
    store.counters.set("orders", time_zone="Australia/Lord_Howe", dimensions=["country"])
    with closing(opening(mysql_url)) as first, open_app(mysql_url) as before:
        commit_one(store, before, "orders", GERMAN)
        store.increment(first.connection, "orders", GERMAN, 10)
        made = store.counters.set("orders", breakdowns=["country"]).breakdowns[0]
        midnight = datetime.fromtimestamp(made.since * 60, UTC)
        # Past it, in the same transaction and in others that are committed before it.
        store.increment(first.connection, "orders", GERMAN, 100, at=midnight)
        commit_one(store, before, "orders", GERMAN, 1000, at=midnight + timedelta(minutes=1))
        first.commit()
    assert keys(session, "orders") == {b"": 1111}
    assert keys(session, made.name) == {b"DE": 1100}
    assert verify(verifying).differences == []
