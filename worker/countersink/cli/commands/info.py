"""``countersink info``."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click
import redis
from rich.console import RenderableType
from rich.live import Live

from countersink.cli import output, schedule_state, settings
from countersink.cli.failures import Misuse
from countersink.cli.info_view import render
from countersink.cli.queue_state import QueueState, look
from countersink.store import dead, overflow
from countersink.store.connection import connect as connect_mysql
from countersink.store.errors import StoreError
from countersink.store.migrate import require_schema
from countersink.stream.connection import connect as connect_redis
from countersink.stream.errors import StreamUnavailable

_NUMBERS: Final = frozenset(
    (
        "pid",
        "slot",
        "entries",
        "duplicates",
        "rows",
        "cells",
        "dead",
        "too_old",
        "overflown",
        "lost",
        "last_batch_ms",
    )
)
_TIMES: Final = frozenset(("started", "updated", "last_batch", "last_error_at"))


@click.command("info", cls=settings.Command)
@settings.one_off("--watch", is_flag=True, help="Show it again and again until Ctrl-C.")
@settings.setting(
    "--every",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often, with --watch.",
)
@settings.output_format("table", "json")
@settings.redis_url
@settings.mysql_url
def command(
    watch: bool, every: float, format: str, redis_url: str | None, mysql_url: str | None
) -> None:
    """Show the backlog, the workers and how far behind they are.

    Dead rows and scheduled jobs are in MySQL; without it the rest is shown all the same. Jobs that
    failed three times in a row stand at the end, with the last error.
    """
    if watch and format == "json":
        raise Misuse(
            "--watch is for people and --format json for programs: leave one of them out",
            click.get_current_context(),
        )
    client = connect_redis(settings.needed(redis_url, "redis"), client_name="countersink-info")
    if watch:
        _watch(lambda: render(found(client, mysql_url)), every)
        return
    state = found(client, mysql_url)
    if format == "json":
        output.write_json(state)
    else:
        output.console().print(render(state))


def found(client: redis.Redis, mysql_url: str | None) -> dict[str, Any]:
    """Ask both servers; the document of ``--format json``.

    Raises:
        StreamError: Redis did not do its part. Without MySQL the rest is there all the same.
    """
    return document(look(client), _tables(mysql_url), schedule_state.look(mysql_url))


@dataclass(frozen=True, slots=True)
class Tables:
    """What MySQL knows.

    Attributes:
        dead: dead rows by reason.
        overflown: rows of yesterday and today (UTC) that went to ``__overflow__``, by counter.
    """

    dead: dict[str, int]
    overflown: dict[str, int]


def document(state: QueueState, tables: Tables | str, schedules: dict[str, Any]) -> dict[str, Any]:
    """Everything known, as ``--format json`` prints it; ``tables``: or why MySQL is not known.

    No counter is named: whoever may see this may not see all of them.
    """
    known = None if isinstance(tables, str) else tables
    return {
        "at": output.iso_ms(state.now),
        "backlog": state.backlog,
        "pending": state.pending,
        "oldest": None if state.oldest is None else output.iso_ms(state.oldest),
        "lag_ms": state.lag_ms,
        "rows_per_second": state.rate,
        "dead": None if known is None else sum(known.dead.values()),
        "dead_by_reason": None if known is None else known.dead,
        "dead_unknown": tables if known is None else None,
        "overflown": None
        if known is None
        else {"rows": sum(known.overflown.values()), "counters": len(known.overflown)},
        "streams": [
            {
                "stream": stream.stream,
                "entries": stream.entries,
                "pending": stream.pending,
                "oldest": None if stream.oldest is None else output.iso_ms(stream.oldest),
                "bytes": stream.bytes,
            }
            for stream in state.streams
        ],
        "workers": [{"worker": name, **_typed(f)} for name, f in state.workers.items()],
        "schedules": schedules,
    }


def _tables(mysql_url: str | None) -> Tables | str:
    """What MySQL knows; or, as a text, why that is not known."""
    if not mysql_url:
        return "no MySQL URL is configured"
    try:
        with connect_mysql(mysql_url) as session:
            require_schema(session)
            return Tables(dead.count(session), overflow.by_counter(session))
    except StoreError as error:
        return str(error)


def _typed(fields: dict[str, str]) -> dict[str, object]:
    typed: dict[str, object] = {}
    for name, text in sorted(fields.items()):
        if name in _NUMBERS or name in _TIMES:
            number = int(text) if text.isdecimal() else None
            typed[name] = output.iso_ms(number) if number and name in _TIMES else number or None
            if name in _NUMBERS:
                typed[name] = number
        elif name == "rate":
            typed["rows_per_second"] = float(text) if text.replace(".", "", 1).isdecimal() else None
        else:
            typed[name] = text
    return typed


def _watch(screen: Callable[[], RenderableType], every: float) -> None:
    console = output.console()
    # Without a screen there is nothing to draw over: one after the other.
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            try:
                shown = screen()
            except StreamUnavailable as error:
                shown = output.cell(f"{error}; trying again")
            if console.is_terminal:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
            time.sleep(every)
