"""An application with tables that are tracked, and what their counters should say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from countersink.database.connection import connect
from countersink.database.session import Session
from countersink.database.url import Settings
from countersink.row_counts.check import RowDifference
from countersink.row_counts.definitions import TrackedTable
from countersink.store import Store
from countersink.store.verify import open_session
from tests.support.table_oracle import Tracked, snapshot


class App:
    """An application with tables in `schema`.

    `session` is its connection, `own` one to the tables of countersink.
    """

    def __init__(
        self, mysql_url: str, app_url: str, session: Session, own: Session, store: Store
    ) -> None:
        self.mysql_url = mysql_url
        self.app_url = app_url
        self.schema = str(Settings.parse(app_url).database)
        self.session = session
        self.own = own
        self.store = store

    def run(self, *statements: str) -> None:
        """Run the application's statements."""
        for statement in statements:
            self.session.execute(statement)

    def track(self, table: str, **how: Any) -> TrackedTable:
        """Track one of its tables."""
        return self.store.tracked.track(f"{self.schema}.{table}", **how)

    def counts(self, counter: str) -> dict[tuple[str, bytes], int]:
        """What a counter says, without cells of 0, by day and key."""
        with snapshot(self.mysql_url) as reader:
            return dict(reader.in_counter(counter))

    def found(self, counter: str | None = None) -> list[RowDifference]:
        """What a check finds."""
        with open_session(self.mysql_url) as session:
            return [
                difference
                for tracked in self.store.tracked.list()
                if counter in (None, tracked.counter)
                for difference in self.store.tracked.check(session, tracked)
            ]

    def differs(self) -> list[str]:
        """Where a counter of text columns is not what the rows say."""
        with snapshot(self.mysql_url) as reader:
            return [
                line
                for each in self.store.tracked.list()
                for line in reader.differences(
                    Tracked(each.counter, each.schema, each.table, each.by, each.day)
                )
            ]

    def triggers(self) -> set[str]:
        """The names of all triggers on its tables."""
        return {
            name
            for (name,) in self.session.query(
                "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = %s",
                (self.schema,),
            )
        }


@contextmanager
def user(server_url: str, *grants: str) -> Iterator[str]:
    """The URL of a user who has these rights and no others."""
    settings = Settings.parse(server_url)
    with connect(server_url, database=False) as root:
        root.execute("CREATE USER limited@'%' IDENTIFIED BY 'secret'")
        try:
            for grant in grants:
                root.execute(f"GRANT {grant} TO limited@'%'")
            yield f"mysql://limited:secret@{settings.host}:{settings.port}/{settings.database}"
        finally:
            root.execute("DROP USER limited@'%'")
