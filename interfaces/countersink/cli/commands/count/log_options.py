"""Flags that ``tail`` and ``backfill`` share (``--input-format``, ``--log-format``, ``--envelope``,
``--time-zone``, ``--where``, ``--dimension``, ``--visitor``, ``--allow-rejects``), and parsing of
their values, with their errors."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import click

from countersink.cli import settings
from countersink.cli.settings import DIMENSION, TEXT, ZONE, Checked
from countersink.logs.formats.detection import ENVELOPES
from countersink.logs.template import Condition, Operator

_CONDITION: Final = re.compile(r"(.+?)\s*(!=|!~|=|~)\s*(.*)", re.DOTALL)


Option = Callable[[settings.Decorated], settings.Decorated]


class _Conditions(Checked[Condition]):
    """Conditions; several in one text are divided by spaces, and quoted as in a shell."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """The conditions of a variable."""
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise click.BadParameter(f"{rv!r}: {error}") from None


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a condition such as status=200, status!=404, path~/blog/* or"
            " agent!~*bot*"
        )
    return Condition(found[1].strip(), cast(Operator, found[2]), found[3])


CONDITION: Final = _Conditions("condition", _condition)


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many lines may be rejected: a number, or a part of those that were read.

    Attributes:
        lines: so many.
        percent: or so many of a hundred.
    """

    lines: int = 0
    percent: float | None = None

    def covers(self, rejected: int, read: int) -> bool:
        """Whether ``rejected`` lines of ``read`` are allowed."""
        if self.percent is None:
            return rejected <= self.lines
        return rejected * 100 <= self.percent * read


def _allowance(text: str) -> Allowance:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return Allowance(lines=int(text))
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?%", text) and float(text[:-1]) <= 100:
        return Allowance(percent=float(text[:-1]))
    raise ValueError(f"{text!r} is neither a number of lines, such as 20, nor a part, such as 1%")


allow_rejects: Final = settings.setting(
    "--allow-rejects",
    type=Checked("allowance", _allowance),
    metavar="N|P%",
    help="End with 0, not with 3, if at most N lines are rejected, or P% of the lines.",
)
"""Decorator: how many lines may be rejected."""


def _fields(text: str) -> tuple[str, ...]:
    fields = tuple(field.strip() for field in text.split(",")) if text else ()
    if not all(fields) or len(set(fields)) < len(fields):
        raise ValueError(f"{text!r}: give fields, each once, divided by commas: host,agent")
    return fields


_FIELDS: Final = Checked("fields", _fields)


def options(formats: Sequence[str], option: Callable[..., Option]) -> Option:
    """Decorator: what lines are, and which of them count, for a command that reads these formats;
    each option is made by ``option``: a setting, or a one-off."""
    return settings.together(
        option(
            "--input-format",
            type=click.Choice(formats),
            default="auto",
            help="Format of the lines; auto detects it from the first lines of a log.",
        ),
        option(
            "--log-format",
            type=TEXT,
            default="",
            help="Format of the lines, as the server's configuration has it: Apache's"
            " '%h %l %u %t \"%r\" %>s %b', or nginx's '$remote_addr - $remote_user"
            " [$time_local] …'.",
        ),
        option(
            "--envelope",
            type=click.Choice(ENVELOPES),
            help="What wraps each line: docker's or Kubernetes' log file (cri), a prefix of syslog"
            " or docker compose, or quotes."
            " --input-format auto detects it.",
        ),
        option(
            "--time-zone",
            type=ZONE,
            help="Time zone of times that have none: an IANA name. By default they are rejected.",
        ),
        option(
            "--where",
            type=CONDITION,
            multiple=True,
            metavar="FIELD=VALUE",
            help="Count only lines that match; repeatable. Also !=, and ~ and !~ for shell"
            " patterns.",
        ),
        option(
            "--dimension",
            type=DIMENSION,
            multiple=True,
            metavar="NAME=FIELD",
            help="A dimension of the counter, and the field that holds its value; repeatable."
            " Stands in the place of a key.",
        ),
        option(
            "--visitor",
            type=_FIELDS,
            metavar="FIELD[,FIELD]",
            help="The fields that say who the visitor is, such as host,agent, for a counter of"
            " different visitors (counter set --unique); hashed here.",
        ),
    )
