"""Connections of commands: the database and the queue at the URLs of the current command, each open
until the command ends."""

from typing import TYPE_CHECKING

import click

from countersink.cli import settings
from countersink.cli.errors import Misuse

if TYPE_CHECKING:
    import redis

    from countersink.store import Store
    from countersink.store.connection import Session


def tables() -> "Session":
    """A session of the database at ``--mysql-url``, whose tables are up to date."""
    from countersink.store.sessions import open_tables

    return click.get_current_context().with_resource(open_tables(mysql_url()))


def store() -> "Store":
    """The store at ``--mysql-url``, with its replicas at ``--mysql-read-url``."""
    from countersink.store import Store

    made = Store(mysql_url(), read_url=settings.noted("mysql_read_url"))
    return click.get_current_context().with_resource(made)


def queue(client_name: str) -> "redis.Redis":
    """A client of Redis at ``--redis-url``; connects when first used."""
    from countersink.stream.connection import connect

    client: redis.Redis = connect(redis_url(), client_name=client_name)
    click.get_current_context().call_on_close(client.close)
    return client


def mysql_url() -> str:
    """The URL of the database; wrong usage if none is configured."""
    return settings.needed(settings.noted("mysql_url"), "mysql")


def redis_url() -> str:
    """The URL of the queue; wrong usage if none is configured."""
    return settings.needed(settings.noted("redis_url"), "redis")


def jobs_redis_url() -> str:
    """The URL of the Redis for the scheduled jobs; wrong usage if there is none, or a cluster."""
    from countersink.stream.connection import check_single
    from countersink.stream.errors import StreamMisconfigured

    url = settings.noted("jobs_redis_url") or redis_url()
    try:
        check_single(url)
    except StreamMisconfigured as error:
        raise Misuse(str(error)) from None
    return str(url)
