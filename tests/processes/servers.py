"""Servers of applications, how they are started and what their ends do to what was counted.

`TABLE` says it for each server and end; docs/processes.md says the same, and `test_servers.py`
holds both against the servers.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BIN: Final = Path(sys.executable).parent
ENDS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "max requests", "reload")
"""The signals are sent to the process that was started."""

EXACT: Final = "exact"
"""Every answered request is counted."""
RELOADS: Final = "exact, reloads"
"""The processes are replaced, and every answered request is counted."""
INTERVAL: Final = "one interval"
"""What a process has counted since its last flush is lost."""
GOES_ON: Final = "goes on"
"""The server takes no notice."""
ORPHANS: Final = "orphans"
"""The main process ends and leaves its workers, which go on; SIGTERM to these is exact."""
NONE: Final = "–"
"""There is no such end."""

_GUNICORN: Final = (EXACT, EXACT, RELOADS, EXACT, EXACT, EXACT)
_PRELOADED: Final = (*_GUNICORN[:5], NONE)
_ALL_EXACT: Final = (EXACT, EXACT, EXACT, EXACT, NONE, NONE)
_NEVER: Final = (INTERVAL,) * len(ENDS)

TABLE: Final = {
    "uvicorn": (EXACT, EXACT, EXACT, EXACT, EXACT, EXACT),
    "uvicorn --workers 2": (EXACT, EXACT, RELOADS, GOES_ON, EXACT, NONE),
    "gunicorn": _GUNICORN,
    "gunicorn --preload": _PRELOADED,
    "gunicorn -k gthread": _GUNICORN,
    "gunicorn -k gevent": _GUNICORN,
    "gunicorn -k gevent --preload": _PRELOADED,
    "gunicorn -k uvicorn.workers.UvicornWorker": (EXACT, INTERVAL, RELOADS, INTERVAL, EXACT, NONE),
    "eventlet.wsgi": _ALL_EXACT,
    "uwsgi": (INTERVAL, INTERVAL, RELOADS, INTERVAL, INTERVAL, EXACT),
    "uwsgi --die-on-term": (INTERVAL, INTERVAL, RELOADS, INTERVAL, INTERVAL, EXACT),
    "uwsgi --skip-atexit": _NEVER,
    "uwsgi --gevent 10": _NEVER,
    "hypercorn": (EXACT, EXACT, RELOADS, ORPHANS, EXACT, EXACT),
    "hypercorn -w 2": (EXACT, EXACT, RELOADS, ORPHANS, EXACT, NONE),
    "granian": (EXACT, EXACT, RELOADS, ORPHANS, NONE, NONE),
    "granian --interface wsgi": (EXACT, EXACT, RELOADS, ORPHANS, NONE, NONE),
    "daphne": _ALL_EXACT,
    "flask run": (EXACT, EXACT, EXACT, EXACT, NONE, EXACT),
}
"""Server → what becomes of what was counted, at each of `ENDS`."""


@dataclass(frozen=True)
class Server:
    """How to start one.

    Attributes:
        command: its command line, with `{port}`, `{app}` and `{file}`, the program of the app.
        interface: of the app.
        max_requests: what is added so that a process ends after 100 requests.
        reload: what is added so that it is loaded anew when the app's program changes.
        idle: a signal that replaces its processes when each is done with its request.
        kills: its first process kills the one that answers, where these are two.
        last: the signal that ends it.
        misses: one of its workers may miss SIGTERM under load, and ends at the next one.
    """

    command: str
    interface: str
    max_requests: str = ""
    reload: str = ""
    idle: str = ""
    kills: bool = False
    last: str = "SIGTERM"
    misses: bool = False

    @property
    def processes(self) -> int:
        """How many of them answer requests."""
        told = re.search(r" (?:-w|--workers|--processes) (\d)\b", self.command)
        return int(told[1]) if told else 1

    def arguments(self, port: int, app: str, file: Path, end: str) -> list[str]:
        """The command line."""
        extra = {"max requests": self.max_requests, "reload": self.reload}.get(end, "")
        words = f"{self.command} {extra}".split()
        return [
            word.format(port=port, app=f"{file.stem}:{app}", file=file, bin=BIN) for word in words
        ]


def _uvicorn(extra: str = "") -> Server:
    return Server(
        "{bin}/uvicorn {app} --port {port} --log-level warning " + extra,
        "asgi",
        max_requests="--limit-max-requests 100",
        reload="--reload --reload-delay 0.1",
    )


def _gunicorn(extra: str, interface: str = "wsgi") -> Server:
    return Server(
        "{bin}/gunicorn {app} -b 127.0.0.1:{port} -w 2 --log-level warning "
        f"--no-control-socket --graceful-timeout 3 {extra}",
        interface,
        max_requests="--max-requests 100",
        reload="--reload --reload-engine poll",
    )


def _uwsgi(extra: str) -> Server:
    return Server(
        "{bin}/uwsgi --http-socket 127.0.0.1:{port} -w {app} --master --processes 2 "
        "--enable-threads --single-interpreter --disable-logging "
        "--binary-path {bin}/python " + extra,
        "wsgi",
        max_requests="--max-requests 100",
        reload="--touch-reload {file}",
        idle="SIGHUP",
        last="SIGINT",
    )


def _hypercorn(extra: str, interface: str = "asgi") -> Server:
    return Server(
        "{bin}/hypercorn {app} -b 127.0.0.1:{port} --log-level warning " + extra,
        interface,
        max_requests="--max-requests 100",
        reload="--reload",
    )


def _granian(extra: str, interface: str = "asgi") -> Server:
    return Server(
        "{bin}/granian {app} --port {port} --log-level warning "
        f"--interface {interface} {extra}",
        interface,
        misses=interface == "wsgi",
    )


SERVERS: Final = {
    "uvicorn": _uvicorn(),
    "uvicorn --workers 2": _uvicorn("--workers 2 --timeout-worker-healthcheck 30"),
    "gunicorn": _gunicorn(""),
    "gunicorn --preload": _gunicorn("--preload"),
    "gunicorn -k gthread": _gunicorn("-k gthread --threads 4"),
    "gunicorn -k gevent": _gunicorn("-k gevent"),
    "gunicorn -k gevent --preload": _gunicorn("-k gevent --preload"),
    "gunicorn -k uvicorn.workers.UvicornWorker": _gunicorn(
        "-k uvicorn.workers.UvicornWorker", "asgi"
    ),
    "eventlet.wsgi": Server("{bin}/python -m tests.processes.eventlet_server {app} {port}", "wsgi"),
    "uwsgi": _uwsgi(""),
    "uwsgi --die-on-term": _uwsgi("--die-on-term"),
    "uwsgi --skip-atexit": _uwsgi("--skip-atexit"),
    "uwsgi --gevent 10": _uwsgi("--gevent 10 --gevent-monkey-patch"),
    "hypercorn": _hypercorn(""),
    "hypercorn -w 2": _hypercorn("-w 2"),
    "granian": _granian("--workers 2"),
    "granian --interface wsgi": _granian("--workers 2", "wsgi"),
    "daphne": Server("{bin}/daphne {app} -b 127.0.0.1 -p {port}", "asgi"),
    "flask run": Server(
        "{bin}/flask --app {app} run --port {port}", "flask", reload="--reload", kills=True
    ),
}
