"""The head of an answer and its body in one packet, and in one system call."""

import asyncio
from collections.abc import Callable
from typing import Final

_GO_ON: Final = b"HTTP/1.1 100"


class Joined:
    """Stands before a transport, for the answers on one connection.

    uvicorn writes the head of an answer, and then the body; uvloop sends at once what is written.
    So the head is held back until the body comes, or, where none does, until the loop's next turn.

    Args:
        transport: what sends.
        loop: the event loop.
        hang_up: ends the connection, once all of the last answer is written.

    Attributes:
        is_closing: as the transport's.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        hang_up: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._hang_up = hang_up
        self._held = b""
        self._head_is_due = False
        self._later: asyncio.Handle | None = None
        self.is_closing = transport.is_closing

    def begin(self) -> None:
        """The next thing written is the head of an answer."""
        self.flush()
        self._head_is_due = True

    def write(self, data: bytes) -> None:
        """Send, or hold back."""
        if self._later is not None:
            data, self._held = self._held + data, b""
            self._later.cancel()
            self._later = None
        elif self._head_is_due and not data.startswith(_GO_ON):
            self._head_is_due = False
            self._held = data
            self._later = self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send what is held back."""
        if self._later is not None:
            self.write(b"")

    def close(self) -> None:
        """Send what is held back, and hang up."""
        self.flush()
        self._hang_up()
