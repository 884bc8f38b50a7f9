"""``countersink doctor``: its order of checks, its table and JSON, and exit status; the checks are
in ``doctor_mysql.py`` and ``doctor_redis.py``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, Literal

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
        found: what was found, for people.
        advice: what to do; empty when ok.
        check: what was looked at, a name that does not change.
    """

    status: Status
    found: str
    advice: str = ""
    check: str = ""


ok: Final = partial(Finding, "ok")
warn: Final = partial(Finding, "warn")
fail: Final = partial(Finding, "fail")


def of(check: str, *findings: Finding) -> Iterator[Finding]:
    """These findings, of the check of this name."""
    return (replace(each, check=check) for each in findings)


CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000
"""Five minutes: days, at the latest, come out wrong."""


def clock(server: str, ahead_ms: int) -> Finding:
    """The line about a server's clock, which is so far ahead of this machine's."""
    apart = abs(ahead_ms)
    relation = "ahead of" if ahead_ms > 0 else "behind"
    found = f"{server} is {output.ago(apart / 1000)} {relation} this machine"
    if apart < CLOCK_WARN_MS:
        return ok(found)
    advice = "let NTP set the clocks: increments without a time of their own count on Redis's clock"
    return (fail if apart >= CLOCK_FAIL_MS else warn)(found, advice)


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
    from countersink.cli.commands.operate import doctor_mysql, doctor_redis

    if redis_url:
        try:
            yield from doctor_redis.lines(connect(redis_url, client_name="countersink-doctor"))
        except StreamError as error:
            advice = (
                "start Redis, or correct COUNTERSINK_REDIS_URL (host, port, user, password, TLS)"
            )
            yield from of("redis", fail(str(error), advice))
    else:
        yield from _not_configured("redis")
    if mysql_url:
        yield from doctor_mysql.lines(mysql_url)
    else:
        yield from _not_configured("mysql")


def _not_configured(server: str) -> Iterator[Finding]:
    advice = f"set COUNTERSINK_{server.upper()}_URL, such as {settings.EXAMPLES[server]}"
    return of(server, fail("no URL is configured", advice))


def _print(lines: list[Finding]) -> None:
    rows: list[tuple[str, str, str]] = []
    for line in lines:
        rows.append((line.status, line.check, line.found))
        if line.advice:
            rows.append(("", "", f"→ {line.advice}"))
    output.write_rows(("", "check", "found, and what to do"), rows)
