"""Types of the arguments and options of ``countersink sequence``, and how they are told apart.

Not among those of other commands, since they need the store.
"""

import re
from itertools import takewhile
from typing import Final

import click

from countersink.cli import settings
from countersink.cli.types import Checked
from countersink.store.sequences.arguments import name_bytes, number

NONE: Final = "none"
"""What takes a setting away."""


def _name(text: str) -> str:
    name_bytes(text)
    return text


def _number(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return number(int(text), "a number")


def _setting(text: str) -> int | str:
    return NONE if text == NONE else _number(text)


NAME: Final = Checked("name", _name)
NUMBER: Final = Checked("number", _number)
NUMBER_SETTING: Final = Checked("number", _setting)


class TakesNumbers(settings.Command):
    """A command of which -5 is an argument, and --no-such-option none."""

    ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's, after a look at what would be ignored."""
        known = {
            name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)
        }
        for given in takewhile(lambda each: each != "--", args):
            option = given.split("=")[0]
            if re.match(r"-[^0-9]", given) and option not in known:
                raise click.NoSuchOption(option, possibilities=sorted(known), ctx=ctx)
        return super().parse_args(ctx, args)
