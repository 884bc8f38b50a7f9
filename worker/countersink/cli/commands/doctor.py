"""``countersink doctor``."""

from collections.abc import Iterator

import click

from countersink.cli import exits, output, settings
from countersink.cli.doctor import mysql_lines, redis_lines
from countersink.cli.doctor.line import Line
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError


@click.command("doctor", cls=settings.Command)
@settings.output_format("table", "json")
@settings.redis_url
@settings.mysql_url
def command(format: str, redis_url: str | None, mysql_url: str | None) -> int:
    """Check the servers and their settings, and say what to do.

    Each line is ok, warn (it works; something can get lost or slow) or fail. The status is 1 when
    a line fails. Nothing is written to either server.
    """
    lines = list(_lines(redis_url, mysql_url))
    if format == "json":
        output.write_json({"lines": [line.as_json() for line in lines]})
    else:
        _print(lines)
    return exits.FAILED if any(line.status == "fail" for line in lines) else exits.DONE


def _lines(redis_url: str | None, mysql_url: str | None) -> Iterator[Line]:
    redis_ahead = None
    if redis_url:
        try:
            client = connect(redis_url, client_name="countersink-doctor")
            yield from redis_lines.lines(client)
            redis_ahead = redis_lines.ahead_ms(client)
        except StreamError as error:
            yield Line("fail", "redis", str(error), "correct COUNTERSINK_REDIS_URL")
    else:
        yield _not_configured("redis", "redis://localhost:6379/0")
    if not mysql_url:
        yield _not_configured("mysql", "mysql://user:password@localhost:3306/countersink")
        return
    yield from mysql_lines.lines(mysql_url)
    mysql_ahead = mysql_lines.ahead_ms(mysql_url)
    if redis_ahead is not None and mysql_ahead is not None:
        yield redis_lines.clock(
            "mysql clock", "the database server", "Redis", mysql_ahead - redis_ahead
        )


def _not_configured(server: str, example: str) -> Line:
    return Line(
        "fail",
        server,
        "no URL is configured",
        f"set COUNTERSINK_{server.upper()}_URL, such as {example}",
    )


def _print(lines: list[Line]) -> None:
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = output.table({"": False, "check": False, "found, and what to do": False})
    for line in lines:
        advice = f"\n→ {output.cell(line.advice)}" if line.advice else ""
        table.add_row(
            line.status,
            line.check,
            output.cell(line.found) + advice,
            style=None if line.status == "ok" else styles[line.status],
        )
    output.write_table(table)
