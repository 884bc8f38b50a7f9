"""A session on the database, checked, for commands that need more than totals."""

from collections.abc import Iterator
from contextlib import contextmanager

from countersink.cli.settings import needed
from countersink.store.connection import Session, connect
from countersink.store.migrate import require_schema


@contextmanager
def session(mysql_url: str | None) -> Iterator[Session]:
    """A session on tables of our version, closed afterwards.

    Raises:
        click.UsageError: no URL is configured.
        StoreError: as :func:`countersink.store.connection.connect`, or SchemaMismatch.
    """
    with connect(needed(mysql_url, "mysql")) as opened:
        require_schema(opened)
        yield opened
