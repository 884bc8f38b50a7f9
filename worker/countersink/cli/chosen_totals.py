"""The options by which a command picks totals: of which keys, which days, in whose time zone."""

from typing import Final

from countersink.cli import settings
from countersink.cli.types import DAY, KEY
from countersink.cli.zones import ZONE

_OPTIONS: Final = (
    settings.one_off(
        "--key", "keys", type=KEY, multiple=True, metavar="KEY", help="This key alone; repeatable."
    ),
    settings.one_off("--from", "start", type=DAY, metavar="DAY", help="First day, inclusive."),
    settings.one_off("--to", "end", type=DAY, metavar="DAY", help="Last day, inclusive."),
    settings.one_off(
        "--time-zone",
        type=ZONE,
        metavar="ZONE",
        help="Whose days, hours and months: an IANA name.  [default: each counter's own]",
    ),
)


def chosen_totals(function: settings.Decorated) -> settings.Decorated:
    """Decorator: ``--key``, ``--from``, ``--to`` and ``--time-zone``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
