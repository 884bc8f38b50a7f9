"""A store whose sequences are empty, and a clock to turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

import pytest

from countersink.database.session import Session
from countersink.database.sessions import Pool, open_tables
from countersink.database.url import Settings
from countersink.sequences import Sequences
from countersink.store import Store


@pytest.fixture
def sequences(store: Store) -> Sequences:
    """Its sequences."""
    return store.sequences


@pytest.fixture
def nowhere(store_of_nowhere: Store) -> Sequences:
    """Its sequences."""
    return store_of_nowhere.sequences


class ServerClock:
    """The clock of a real server, as our sessions on it see it: SET timestamp moves it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._moment = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self._made: list[Session] = []

    @contextmanager
    def sequences(self) -> Iterator[Sequences]:
        """Sequences on sessions that go by this clock."""
        changing = partial(self._session, "READ COMMITTED")
        pool = Pool(partial(self._session, "REPEATABLE READ"))
        database = Settings.parse(self._url).database or ""
        made = Sequences(changing, changing, pool, database)
        try:
            yield made
        finally:
            made.close()
            pool.close()

    def set(self, moment: str) -> None:
        """Stop it there, in UTC: ``2026-11-30T23:00``."""
        self._moment = datetime.fromisoformat(moment).replace(tzinfo=UTC)
        for session in self._made:
            if not session.closed:
                self._turn(session)

    def _session(self, isolation: str) -> Session:
        session = open_tables(
            self._url,
            isolation="READ COMMITTED" if isolation == "READ COMMITTED" else "REPEATABLE READ",
        )
        self._turn(session)
        self._made.append(session)
        return session

    def _turn(self, session: Session) -> None:
        session.execute(f"SET timestamp = {self._moment.timestamp():.6f}")


@pytest.fixture
def clock(mysql_url: str) -> ServerClock:
    """The server's clock, to be turned."""
    return ServerClock(mysql_url)


@pytest.fixture
def timed(clock: ServerClock) -> Iterator[Sequences]:
    """Sequences that go by it."""
    with clock.sequences() as made:
        yield made
