"""What can go wrong with a private server.

ServerError
├── ServerMissing   the program is not installed: the message is the one line that says what to do
└── ServerFailed    it did not start or stop: the message ends with the last lines of its log
"""

from __future__ import annotations


class ServerError(Exception):
    """Base of everything that `countersink.cli.servers` raises by itself."""


class ServerMissing(ServerError):
    """The server's program is not on this machine."""


class ServerFailed(ServerError):
    """The program is there, but did not do what was asked of it."""
