"""``countersink increment``: flags, how often it is tried (``ATTEMPTS``), and the message when it
may or may not be stored."""

from datetime import datetime
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.errors import Failure, Misuse, values_checked
from countersink.cli.output import printable
from countersink.cli.settings import AMOUNT, COUNTER, DIMENSION, KEY, MOMENT
from countersink.runtime.dimensions import RowKey, check_dimensions
from countersink.runtime.limits import minute_of
from countersink.stream.clock import RedisClock
from countersink.stream.connection import connect, mapped
from countersink.stream.entry import Sealed, encode_rows, new_entry_id
from countersink.stream.errors import StreamError, StreamUnavailable
from countersink.stream.names import PartitionRoute, note_use


@click.command("increment", cls=settings.Command)
@click.argument("counter", type=COUNTER)
@click.argument("key", type=KEY, default="")
@settings.one_off(
    "--dimension",
    "dimensions",
    type=DIMENSION,
    multiple=True,
    metavar="NAME=VALUE",
    help="A value of a dimension, for a counter that has dimensions; repeatable. Not with KEY.",
)
@settings.one_off(
    "--amount",
    type=AMOUNT,
    default=1,
    metavar="N",
    help="What to add; may be negative.",
)
@settings.one_off(
    "--at",
    type=MOMENT,
    metavar="ISO8601",
    help="When the event happened, with a time zone: 2026-11-21T08:00:00+01:00. Default: now.",
)
@settings.redis_url
def command(
    counter: str,
    key: str,
    dimensions: tuple[tuple[str, str], ...],
    amount: int,
    at: datetime | None,
    redis_url: str | None,
) -> None:
    """Add to a counter, through the same queue as an app.

    The increment is for COUNTER as a whole, for KEY in it, or for values of its dimensions. It is
    stored in Redis when this command ends with 0, and in MySQL a moment later if a worker runs. An
    amount of 0 declares the key without counting.
    """
    if key and dimensions:
        raise Misuse("an increment has a KEY, or dimensions: leave one of them out")
    given = dict(dimensions)
    if len(given) < len(dimensions):
        raise Misuse("--dimension is given twice for the same name")
    with values_checked():
        row_key = check_dimensions(given) if given else key
    send_one(settings.needed(redis_url, "redis"), counter, row_key, amount, at)
    shown = [printable(f"{name}={value}") for name, value in dimensions] or [printable(key)]
    words = [counter, *filter(None, shown), f"{amount:+d}", "is in the queue"]
    click.echo(" ".join(words))


ATTEMPTS: Final = 3


def send_one(redis_url: str, counter: str, key: RowKey, amount: int, at: datetime | None) -> None:
    """Store one increment in the queue.

    A lost reply is answered by sending the same bytes again, which cannot count twice; of a
    cluster to another master.

    Raises:
        StreamError: nothing was sent.
        Failure: it was sent, and Redis never said whether it arrived.
    """
    client = connect(redis_url, client_name="countersink-increment")
    route, clock = PartitionRoute(), RedisClock()
    route.find(client)
    route.reach(client, lambda: clock.learn(client, route.stream))
    now = clock.now_ms()
    minute = now // 60_000 if at is None else minute_of(at)
    rows = encode_rows([(counter, key, minute, amount)])
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
