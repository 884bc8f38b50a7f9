"""Users that have the rights which a page says are enough."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from countersink.database.connection import connect
from countersink.database.url import Settings


@contextmanager
def users_with(mysql_url: str, granted: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, str]]:
    """The URLs of users, by their names, until the end of the block.

    Args:
        mysql_url: the database.
        granted: all that they may: rights, table, user.
    """
    settings = Settings.parse(mysql_url)
    place = f"{settings.host}:{settings.port}/{settings.database}"
    urls: dict[str, str] = {}
    with connect(mysql_url) as root:
        try:
            for rights, table, user in granted:
                if user not in urls:
                    root.execute(f"CREATE USER {user}@'%%' IDENTIFIED BY 'geheim'", ())
                    urls[user] = f"mysql://{user}:geheim@{place}"
                root.execute(f"GRANT {rights} ON {settings.database}.{table} TO {user}@'%%'", ())
            yield urls
        finally:
            for user in urls:
                root.execute(f"DROP USER {user}@'%%'", ())
