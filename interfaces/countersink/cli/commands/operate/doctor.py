"""``countersink doctor``: the order of the checks, their output and the exit status.

See ``doctor_mysql.py`` and ``doctor_redis.py`` for the checks.
"""

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
    """The result of one check.

    Attributes:
        status: ``ok``; ``warn``: it works, but counts can be lost or delayed; ``fail``: it does not
            work, or counts would be wrong.
        found: the state that the check found, as text.
        advice: text that says what to do; empty if ok.
        check: the name of the check, which is the same in every release.
    """

    status: Status
    found: str
    advice: str = ""
    check: str = ""


ok: Final = partial(Finding, "ok")
warn: Final = partial(Finding, "warn")
fail: Final = partial(Finding, "fail")


def named(check: str, *findings: Finding) -> Iterator[Finding]:
    """The findings, with the name of their check."""
    return (replace(each, check=check) for each in findings)


CLOCK_WARN_MS: Final = 2_000
CLOCK_FAIL_MS: Final = 300_000
"""Five minutes; from then on, increments near midnight count for the wrong day."""


def clock(server: str, ahead_ms: int) -> Finding:
    """The finding on a server's clock that is ``ahead_ms`` milliseconds ahead of this machine's."""
    apart = abs(ahead_ms)
    relation = "ahead of" if ahead_ms > 0 else "behind"
    found = f"{server} is {output.ago(apart / 1000)} {relation} this machine"
    if apart < CLOCK_WARN_MS:
        return ok(found)
    advice = "let NTP set the clocks: increments without a time count at the time of Redis"
    return (fail if apart >= CLOCK_FAIL_MS else warn)(found, advice)


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
    # here, since both modules import this one
    from countersink.cli.commands.operate import doctor_mysql, doctor_redis

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
