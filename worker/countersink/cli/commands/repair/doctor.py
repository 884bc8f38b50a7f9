"""``countersink doctor``: its order of checks, its table and JSON, and exit status; the checks are
in ``doctor_mysql.py`` and ``doctor_redis.py``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import click

from countersink.cli import output, settings
from countersink.cli.errors import Exit
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        status: ``ok``; ``warn``: it works, and something can be lost or will get slow; ``fail``: it
            does not work, or counts would be wrong.
        check: what was looked at, a name that does not change.
        found: what was found, for people.
        advice: what to do; empty when ok.
    """

    status: Status
    check: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """Makes the findings of one check; what is not ok comes with what to do."""

    name: str

    def ok(self, found: str) -> Finding:
        """It is as it should be."""
        return Finding("ok", self.name, found)

    def warn(self, found: str, advice: str) -> Finding:
        """It works, and something can be lost or will get slow."""
        return Finding("warn", self.name, found, advice)

    def fail(self, found: str, advice: str) -> Finding:
        """It does not work, or counts would be wrong."""
        return Finding("fail", self.name, found, advice)


@click.command("doctor", cls=settings.Command)
@settings.of_redis("table", "json")
@settings.urls("mysql_url")
def command() -> int:
    """Check the servers and their settings, and say what to do.

    Each line is ok, warn (it works; something can get lost or slow) or fail. The status is 1 when
    a line fails. Nothing is written to either server.
    """
    lines = list(_lines(settings.noted("redis_url"), settings.noted("mysql_url")))
    output.write_result({"lines": list(map(asdict, lines))}, partial(_print, lines))
    return Exit.FAILED if any(line.status == "fail" for line in lines) else Exit.DONE


def _lines(redis_url: str | None, mysql_url: str | None) -> Iterator[Finding]:
    # here, since both make findings
    from countersink.cli.commands.repair import doctor_mysql, doctor_redis

    redis_ahead = None
    if redis_url:
        try:
            client = connect(redis_url, client_name="countersink-doctor")
            yield from doctor_redis.lines(client)
            redis_ahead = doctor_redis.ahead_ms(client)
        except StreamError as error:
            yield DoctorCheck("redis").fail(str(error), "correct COUNTERSINK_REDIS_URL")
    else:
        yield _not_configured("redis")
    if not mysql_url:
        yield _not_configured("mysql")
        return
    yield from doctor_mysql.lines(mysql_url)
    mysql_ahead = doctor_mysql.ahead_ms(mysql_url)
    if redis_ahead is not None and mysql_ahead is not None:
        yield doctor_redis.clock(
            "mysql clock", "the database server", "Redis", mysql_ahead - redis_ahead
        )


def _not_configured(server: str) -> Finding:
    advice = f"set COUNTERSINK_{server.upper()}_URL, such as {settings.EXAMPLES[server]}"
    return DoctorCheck(server).fail("no URL is configured", advice)


def _print(lines: list[Finding]) -> None:
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = output.table(("", "check", "found, and what to do"))
    for line in lines:
        advice = f"\n→ {output.cell(line.advice)}" if line.advice else ""
        table.add_row(
            line.status,
            line.check,
            output.cell(line.found) + advice,
            style=None if line.status == "ok" else styles[line.status],
        )
    output.console().print(table)
