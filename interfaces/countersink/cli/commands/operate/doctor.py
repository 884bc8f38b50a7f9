"""``countersink doctor``: the order of the checks, their output and the exit status.

See ``doctor_mysql.py`` and ``doctor_redis.py`` for the checks.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import click

from countersink.cli import output, settings
from countersink.cli.commands.operate import doctor_mysql, doctor_redis
from countersink.cli.commands.operate.findings import Finding, fail, named
from countersink.cli.errors import Exit
from countersink.stream.connection import connect
from countersink.stream.errors import StreamError


@click.command("doctor", cls=settings.Command)
@settings.redis_options("table", "json")
@settings.urls("mysql_url")
def command() -> int:
    """Check the servers and their settings, and advise what to do.

    Each line is ok, warn (it works, but counts can be lost or delayed) or fail. The status is 1 if
    a line is fail. The command writes to neither server.
    """
    lines = list(_lines(settings.option_value("redis_url"), settings.option_value("mysql_url")))
    output.write_result({"lines": list(map(asdict, lines))}, partial(_print, lines))
    return Exit.FAILED if any(line.status == "fail" for line in lines) else Exit.DONE


def _lines(redis_url: str | None, mysql_url: str | None) -> Iterator[Finding]:
    if redis_url:
        try:
            yield from doctor_redis.lines(connect(redis_url, client_name="countersink-doctor"))
        except StreamError as error:
            advice = (
                "start Redis, or correct COUNTERSINK_REDIS_URL (host, port, user, password, TLS)"
            )
            yield from named("redis", fail(str(error), advice))
    else:
        yield from _not_configured("redis")
    if mysql_url:
        yield from doctor_mysql.lines(mysql_url)
    else:
        yield from _not_configured("mysql")


def _not_configured(server: str) -> Iterator[Finding]:
    advice = f"set COUNTERSINK_{server.upper()}_URL, such as {settings.EXAMPLES[server]}"
    return named(server, fail("no URL is configured", advice))


def _print(lines: list[Finding]) -> None:
    rows: list[tuple[str, str, str]] = []
    for line in lines:
        rows.append((line.status, line.check, line.found))
        if line.advice:
            rows.append(("", "", f"→ {line.advice}"))
    output.write_rows(("", "check", "found, and what to do"), rows)
