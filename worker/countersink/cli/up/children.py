"""What `countersink up` runs besides the servers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from countersink.cli.servers.ports import LOOPBACK, free_port, usual_or_free
from countersink.cli.up.command import CommandProcess
from countersink.producers.statsd.options import PORT as STATSD_PORT
from countersink.web.options import PORT as WEB_PORT

COMMANDS = ("worker", "jobs", "jobs", "scheduler", "web", "statsd")
"""What runs, in the order of starting; stopped in the opposite one. A job process does one run at a
time: with two of them a run that takes hours does not keep the alarms from looking."""
WEB_MODULE = "uvicorn"
"""Only the ``web`` extra installs it."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where `web` and `statsd` listen on this machine.

    Attributes:
        web, statsd: the ports; the same after each restart. ``web`` is None where there is no web.
    """

    web: int | None
    statsd: int

    @classmethod
    def chosen(cls, web: int | None, statsd: int | None) -> Ports:
        """The ports asked for; None: the usual one, or a free one where it is taken; 0: a free one.

        Raises OSError when there is none.
        """
        installed = find_spec(WEB_MODULE) is not None
        return cls(
            web=_port(web, WEB_PORT) if installed else None, statsd=_port(statsd, STATSD_PORT)
        )

    def arguments(self) -> dict[str, list[str]]:
        """What the commands are told, by name."""
        return {"web": ["--port", str(self.web)], "statsd": ["--port", str(self.statsd)]}

    def open(self) -> bool:
        """Whether the page can be had: what is printed of it shall be true at once."""
        if self.web is None:
            return True
        try:
            socket.create_connection((LOOPBACK, self.web), timeout=1).close()
        except OSError:
            return False
        return True


def children(urls: Mapping[str, str], ports: Ports) -> list[CommandProcess]:
    """The processes, in the order of starting; none of them is started."""
    arguments = ports.arguments()
    return [
        CommandProcess(name, urls, arguments.get(name, ()))
        for name in COMMANDS
        if name != "web" or ports.web is not None
    ]


def _port(asked: int | None, usual: int) -> int:
    return usual_or_free(usual) if asked is None else asked or free_port()
