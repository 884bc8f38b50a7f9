"""``countersink web``: flags with help, and the message about missing packages; defaults and bounds
are in ``web/options.py``."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import click

from countersink.cli import settings
from countersink.cli.commands.maintain.info import found
from countersink.cli.commands.maintain.job_runs import act
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
    help="Serve requests that have no key, too: everybody may do everything.",
)
@_several(
    "--allowed-host",
    "allowed_hosts",
    "NAME",
    "A name by which clients reach it, such as counters.example.com; * for any. Repeatable.",
)
@_several(
    "--public-counter",
    "public_counters",
    "PATTERN",
    "Counters to which anybody may add 1 without a key, by pixel, badge or beacon: a name, or a"
    " shell pattern that matches existing counters. Repeatable.",
)
@_several(
    "--hit-visitors",
    "hit_visitors",
    "PATTERN",
    "Counters of different visitors (counter set --unique) whose pixels, badges and beacons tell"
    " the visitor: address and user agent, hashed. A name or a shell pattern. Repeatable.",
)
@_several(
    "--trusted-proxy",
    "trusted_proxies",
    "ADDRESS",
    "Address or network of a proxy whose X-Forwarded-For and -Proto are believed. Repeatable.",
)
@settings.numbers(
    WebOptions,
    max_body_bytes="Most bytes of a body, before and after decompression.",
    max_counters="Names of counters that one key may use while the server runs; of sequences too.",
    max_items="Most increments in one request.",
    max_amount="Largest amount that one increment may add or subtract.",
    max_ahead_s="Seconds that an event's time may be ahead of this machine's clock.",
    max_age_days="Days that an event's time may be in the past; 0 for no limit.",
    rate_per_key="Most requests per second with one key; 0 for no limit.",
    rate_per_address="Most requests per second without a key from one address; 0 for no limit.",
    failures_per_minute="Wrong keys per minute that one address may send.",
    max_connections="Most connections at once.",
    request_timeout_s="Seconds within which a request must arrive.",
    read_timeout_s="Seconds that a read may take; after that the answer is 503.",
    wait_s="Most seconds that a request with ?wait= waits.",
    max_pending_entries="Most entries in the queue with which include_pending is answered.",
    threads="Requests that may read totals at once; as many others may run beside them.",
    session_hours="Hours that a login to the dashboard lasts.",
)
@settings.log_format
@settings.urls("redis_url", "mysql_url", "mysql_read_url")
def command(log_format: str, **options: Any) -> int:
    """Serve HTTP: increments in, totals out, and the dashboard.

    Every request needs a key. Where none is valid, it makes one and prints it, if it runs on a
    terminal; else it ends: countersink key create makes one. On SIGTERM and Ctrl-C it answers the
    open requests and stores what was accepted. Details: docs/http.md.
    """
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise Failure(f"countersink web needs {', '.join(missing)}: pip install 'countersink[web]'")
    from countersink.web.errors import CannotServe
    from countersink.web.server import run

    redis_url, mysql_url = settings.redis_url(), settings.mysql_url()
    options["mysql_read_url"] = settings.noted("mysql_read_url")
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
                schedule=partial(act, mysql_url),
                announce=lambda text: handler.write(f"countersink web: {text}\n"),
                terminal=sys.stderr.isatty(),
            )
    except CannotServe as error:
        raise Failure(str(error)) from error
