"""``countersink increment``."""

from datetime import datetime

import click

from countersink.cli import settings
from countersink.cli.send import send_one
from countersink.cli.text import printable
from countersink.cli.types import AMOUNT, COUNTER, KEY, MOMENT


@click.command("increment", cls=settings.Command)
@click.argument("counter", type=COUNTER)
@click.argument("key", type=KEY, default="")
@settings.one_off(
    "--amount",
    type=AMOUNT,
    default=1,
    show_default=True,
    metavar="N",
    help="What to add; may be negative.",
)
@settings.one_off(
    "--at",
    type=MOMENT,
    metavar="ISO8601",
    help="When it happened, with its time zone: 2026-11-21T08:00:00+01:00. Default: now.",
)
@settings.redis_url
def command(
    counter: str, key: str, amount: int, at: datetime | None, redis_url: str | None
) -> None:
    """Add to a counter, through the same queue as an app.

    The increment is for COUNTER as a whole, or for KEY in it. It is stored in Redis when this
    command ends with 0, and in MySQL a moment later if a worker runs. An amount of 0 declares the
    key without counting.
    """
    send_one(settings.needed(redis_url, "redis"), counter, key, amount, at)
    click.echo(f"{counter} {printable(key)} {amount:+d} is in the queue".replace("  ", " "))
