"""``countersink web``."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import click

from countersink.cli import settings
from countersink.cli.commands.info import found
from countersink.cli.failures import Failure, Misuse
from countersink.cli.producer_settings import options_for, producer_for
from countersink.stream.connection import connect
from countersink.web.options import WebOptions
from countersink.worker.logs import set_up, take_down

MODULES: Final = ("starlette", "uvicorn", "uvloop", "httptools")
"""What only the ``web`` extra installs."""
DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in fields(WebOptions) if field.name[-4:] != "_url"
}


def _several(
    flag: str, name: str, metavar: str, help: str
) -> Callable[[settings.Decorated], settings.Decorated]:
    return settings.setting(flag, name, multiple=True, metavar=metavar, help=help)


@click.command("web", cls=settings.Command)
@settings.setting("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@settings.number(DEFAULTS, "port", int, "Port to listen at; 0 for any free one.")
@settings.setting(
    "--without-keys",
    is_flag=True,
    help="Listen beyond loopback although there is no key: everybody may do everything.",
)
@_several(
    "--allowed-host",
    "allowed_hosts",
    "NAME",
    "A name that clients reach the server by, such as counters.example.com; * for any. Repeatable.",
)
@_several(
    "--public-counter",
    "public_counters",
    "PATTERN",
    "Counters that anybody may add 1 to without a key, by pixel, badge or beacon: a name, or a"
    " shell pattern, which is of counters that there are already. Repeatable.",
)
@_several(
    "--trusted-proxy",
    "trusted_proxies",
    "ADDRESS",
    "Address or network of a proxy whose X-Forwarded-For and -Proto are believed. Repeatable.",
)
@settings.number(DEFAULTS, "max_body_bytes", int, "Bytes of a body, before and after unpacking.")
@settings.number(DEFAULTS, "max_items", int, "Increments in one request.")
@settings.number(DEFAULTS, "max_amount", int, "The most that one increment may add or take away.")
@settings.number(
    DEFAULTS, "max_ahead_s", float, "Seconds that an event may lie ahead of the clock here."
)
@settings.number(
    DEFAULTS, "max_age_days", int, "Days that an event may lie in the past; 0 for no limit."
)
@settings.number(DEFAULTS, "rate_per_key", float, "Requests per second of one key; 0 for no limit.")
@settings.number(
    DEFAULTS,
    "rate_per_address",
    float,
    "Requests per second, without a key, of one address; 0 for no limit.",
)
@settings.number(DEFAULTS, "failures_per_minute", int, "Wrong keys that one address may show.")
@settings.number(DEFAULTS, "max_connections", int, "Connections at once.")
@settings.number(
    DEFAULTS, "request_timeout_s", float, "Seconds in which a request must have arrived."
)
@settings.number(
    DEFAULTS,
    "read_timeout_s",
    float,
    "Seconds that a read may take; then it is given up: 503.",
)
@settings.number(DEFAULTS, "wait_s", float, "Seconds that a request with ?wait= waits at most.")
@settings.number(
    DEFAULTS,
    "max_pending_entries",
    int,
    "Entries in the queue up to which include_pending is answered.",
)
@settings.number(
    DEFAULTS, "threads", int, "Requests that read totals at once, and as many of all others."
)
@settings.number(DEFAULTS, "session_hours", float, "Hours that a login to the dashboard lasts.")
@settings.log_format
@settings.redis_url
@settings.mysql_url
def command(redis_url: str | None, mysql_url: str | None, log_format: str, **options: Any) -> int:
    """Serve HTTP: increments in, totals out, and the dashboard.

    Without a key it serves this machine alone; countersink key create makes one, and from then on
    every request needs one. SIGTERM and Ctrl-C answer the requests at hand and store what was
    accepted. docs/http.md has it all.
    """
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise Failure(f"countersink web needs {', '.join(missing)}: pip install 'countersink[web]'")
    from countersink.web.run import CannotListen, Unguarded, run

    redis_url = settings.needed(redis_url, "redis")
    mysql_url = settings.needed(mysql_url, "mysql")
    try:
        chosen = WebOptions(redis_url=redis_url, mysql_url=mysql_url, **options)
        producing = options_for(redis_url)
    except ValueError as error:
        raise Misuse(str(error), click.get_current_context()) from error
    handler = set_up(log_format)
    try:
        with connect(redis_url, client_name="countersink-web-info") as client:
            return run(
                chosen,
                producer=partial(producer_for, redis_url, producing),
                system=partial(found, client, mysql_url),
                announce=lambda url: handler.write(f"countersink web: listening at {url}\n"),
            )
    except (CannotListen, Unguarded) as error:
        raise Failure(str(error)) from error
    finally:
        take_down(handler)
