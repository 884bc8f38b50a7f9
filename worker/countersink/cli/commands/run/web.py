"""``countersink web``: flags with help, and the message about missing packages; defaults and bounds
are in ``web/options.py``."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import click

from countersink.cli import settings
from countersink.cli.commands.maintain.info import found
from countersink.cli.errors import Failure, values_checked
from countersink.producers import Producer
from countersink.runtime.log import logged
from countersink.stream.connection import connect
from countersink.web.options import WebOptions

MODULES: Final = ("starlette", "uvicorn", "uvloop", "httptools")
"""What only the ``web`` extra installs."""


def _several(
    flag: str, name: str, metavar: str, help: str
) -> Callable[[settings.Decorated], settings.Decorated]:
    return settings.setting(flag, name, multiple=True, metavar=metavar, help=help)


@click.command("web", cls=settings.Command)
@settings.setting("--host", default="127.0.0.1", help="Address to listen at.")
@settings.numbers(
    WebOptions,
    port="Port to listen at; 0 for any free one.",
)
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
@settings.numbers(
    WebOptions,
    max_body_bytes="Bytes of a body, before and after unpacking.",
    max_items="Increments in one request.",
    max_amount="The most that one increment may add or take away.",
    max_ahead_s="Seconds that an event may lie ahead of the clock here.",
    max_age_days="Days that an event may lie in the past; 0 for no limit.",
    rate_per_key="Requests per second of one key; 0 for no limit.",
    rate_per_address="Requests per second, without a key, of one address; 0 for no limit.",
    failures_per_minute="Wrong keys that one address may show.",
    max_connections="Connections at once.",
    request_timeout_s="Seconds in which a request must have arrived.",
    read_timeout_s="Seconds that a read may take; then it is given up: 503.",
    wait_s="Seconds that a request with ?wait= waits at most.",
    max_pending_entries="Entries in the queue up to which include_pending is answered.",
    threads="Requests that read totals at once, and as many of all others.",
    session_hours="Hours that a login to the dashboard lasts.",
)
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
    from countersink.web.errors import CannotServe
    from countersink.web.server.process import run

    redis_url = settings.needed(redis_url, "redis")
    mysql_url = settings.needed(mysql_url, "mysql")
    with values_checked():
        chosen = WebOptions(redis_url=redis_url, mysql_url=mysql_url, **options)
        producing = settings.producer_options(redis_url)
    try:
        with (
            logged(log_format) as handler,
            connect(redis_url, client_name="countersink-web-info") as client,
        ):
            return run(
                chosen,
                producer=partial(Producer, redis_url, **asdict(producing)),
                system=partial(found, client, mysql_url),
                announce=lambda url: handler.write(f"countersink web: listening at {url}\n"),
            )
    except CannotServe as error:
        raise Failure(str(error)) from error
