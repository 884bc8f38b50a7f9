"""A session on the database, checked, for commands that need more than totals."""

from collections.abc import Iterator
from contextlib import contextmanager

from countersink.cli.settings import needed
from countersink.store.connection import Session
from countersink.store.tables import open_tables


@contextmanager
def session(mysql_url: str | None) -> Iterator[Session]:
    """A session on tables of our version, closed afterwards.

    Raises:
        click.UsageError: no URL is configured.
        StoreError: as :func:`countersink.store.connection.connect`, or SchemaMismatch.
    """
    with open_tables(needed(mysql_url, "mysql")) as opened:
        yield opened
