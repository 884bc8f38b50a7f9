"""``countersink increment``: its flags, the maximum number of attempts to send (``ATTEMPTS``), and
the message for an increment that may or may not be stored."""

from datetime import datetime
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.errors import Failure, Misuse
from countersink.cli.output import printable
from countersink.cli.settings import values_checked
from countersink.cli.values import AMOUNT, COUNTER, DIMENSION, KEY, MOMENT, TEXT
from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import minute_of
from countersink.runtime.members import Salt, check_member, member_hash, no_salt, salt_of
from countersink.stream.connection import connect, mapped
from countersink.stream.entry import RedisClock, Row, Sealed, encode_rows, new_entry_id
from countersink.stream.errors import StreamError, StreamUnavailable
from countersink.stream.names import PartitionRoute, note_use, read_salts


@click.command("increment", cls=settings.Command)
@click.argument("counter", type=COUNTER)
@click.argument("key", type=KEY, default="")
@settings.one_off(
    "--dimension",
    "dimensions",
    type=DIMENSION,
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of a dimension, for a counter with dimensions; repeatable. In place of KEY.",
)
@settings.one_off(
    "--amount", type=AMOUNT, default=1, metavar="N", help="Amount to add; may be negative."
)
@settings.one_off(
    "--at",
    type=MOMENT,
    metavar="ISO8601",
    help="Time of the event, with its time zone: 2026-11-21T08:00:00+01:00. Default: now.",
)
@settings.one_off(
    "--visitor",
    type=TEXT,
    metavar="VISITOR",
    help="The visitor, for a counter of different visitors (counter set --unique); hashed on this"
    " machine.",
)
@settings.urls("redis_url")
def command(
    counter: str,
    key: str,
    dimensions: tuple[tuple[str, str], ...],
    amount: int,
    at: datetime | None,
    visitor: str | None,
) -> None:
    """Add to a counter, through the same queue as an app.

    The increment is for COUNTER as a whole, for KEY in it, or for values of its dimensions. When
    the command ends with 0, the increment is in Redis; a running worker moves it into MySQL a
    moment later. An amount of 0 declares the key without counting.
    """
    if key and dimensions:
        raise Misuse("KEY and --dimension exclude each other: leave out one of them")
    if visitor is not None and amount != 1:
        raise Misuse("--visitor counts one sighting: leave out --amount")
    given = dict(dimensions)
    if len(given) < len(dimensions):
        raise Misuse("--dimension is given twice for the same name")
    with values_checked():
        row_key = check_dimensions(given) if given else key
        member = None if visitor is None else check_member(visitor)
    send_one(settings.redis_url(), counter, row_key, amount, at, member)
    shown = [printable(f"{name}={value}") for name, value in dimensions] or [printable(key)]
    words = [counter, *filter(None, shown), f"{amount:+d}", "is in the queue"]
    click.echo(" ".join(words))


ATTEMPTS: Final = 3
"""How often one entry is sent, at most, if Redis does not reply; in a cluster, more often while
other masters answer."""


def send_one(
    redis_url: str,
    counter: str,
    key: RowKey,
    amount: int,
    at: datetime | None,
    member: bytes | None = None,
) -> None:
    """Store one increment in the queue, as an entry of its own.

    If Redis does not reply, send the entry again, until ``ATTEMPTS`` attempts had no reply. In a
    cluster, if a master does not reply or refuses, send the entry to another master as long as one
    answers. The entry has the same id each time, so it cannot count twice.

    Args:
        redis_url: the URL of the queue.
        counter: the counter.
        key: the key, ``""`` for the counter as a whole; or the values of dimensions.
        amount: the amount to add.
        at: the time of the event; None for now.
        member: the visitor, which this function hashes, for a counter of different members; None
            for other counters.

    Raises:
        StreamError: nothing was stored.
        Failure: either an attempt had no reply and no later one succeeded, so that the entry may or
            may not be stored; or the counter has no salt for hashing the member, and nothing was
            stored.
    """
    client = connect(redis_url, client_name="countersink-increment")
    route, clock = PartitionRoute(), RedisClock()
    route.find(client)
    route.reach(client, lambda: clock.learn(client, route.stream))
    now = clock.now_ms()
    minute = now // 60_000 if at is None else minute_of(at)
    row: Row = (counter, key, minute, amount)
    if member is not None:
        past = min(minute, now // 60_000)
        salts: list[Salt] = []
        route.reach(client, lambda: salts.extend(read_salts(client, route.stream, counter, past)))
        salt = salt_of(salts, minute)
        if salt is None:
            other_time = f"{counter} has no salt of this time: it was forgotten, or is not made yet"
            raise Failure(other_time if salts else no_salt(counter))
        row = (*row, salt.number, member_hash(member, salt.salt))
    rows = encode_rows([row])
    entry = Sealed(new_entry_id(now), now, rows, 1)
    note_use(client, route.partition)
    in_doubt = 0
    while True:
        try:
            with mapped():
                client.xadd(route.stream, entry.fields())
        except StreamError as error:
            away = isinstance(error, StreamUnavailable)
            in_doubt += away
            if route.leave(client, error) is None or (away and in_doubt < ATTEMPTS):
                continue
            if not in_doubt:
                raise
            raise Failure(
                f"{error}; the increment may or may not be stored: compare the totals "
                "before you send it again"
            ) from error
        else:
            return
