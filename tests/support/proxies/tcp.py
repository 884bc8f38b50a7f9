"""The part of a fault-injecting proxy that knows nothing of the protocol.

A proxy listens on a free loopback port, connects each client to the server behind it, and hands the
pair to a thread which passes requests and replies along one at a time. Before a request is
forwarded and after its reply was read, the rules decide what happens: so a test can name a point
in a conversation ("COMMIT was executed, its reply not delivered") without a hook in the product.
"""

import select
import socket
import threading
from collections import Counter, deque
from typing import Any, Self

from tests.support.proxies.rules import Deed, Phase, Request, Rule

Address = tuple[str, int] | str
"""Where the server listens: (host, port), or the path of a Unix socket."""

RECEIVE_BYTES = 1 << 16
POLL_SECONDS = 0.02
REMEMBERED = 10_000


class Cut(Exception):
    """The connection between client and server is over."""


class Link:
    """A client's socket and a server's, each with the bytes read from it and not yet used."""

    def __init__(self, client: socket.socket, server: socket.socket, number: int) -> None:
        self.client = client
        self.server = server
        self.number = number
        self._read = {client: bytearray(), server: bytearray()}

    def take(self, side: socket.socket, size: int) -> bytes:
        """The next `size` bytes from `side`; Cut if either side ends first."""
        read = self._read[side]
        while len(read) < size:
            self._wait_for(side)
        taken = bytes(read[:size])
        del read[:size]
        return taken

    def take_line(self, side: socket.socket) -> bytes:
        """The next line from `side` with its CRLF; Cut if either side ends first."""
        read = self._read[side]
        searched = 0
        while (end := read.find(b"\r\n", searched)) < 0:
            searched = max(0, len(read) - 1)
            self._wait_for(side)
        taken = bytes(read[: end + 2])
        del read[: end + 2]
        return taken

    def waiting(self, side: socket.socket) -> bool:
        """Whether bytes of a further message have been read from `side` already."""
        return bool(self._read[side])

    def send(self, side: socket.socket, data: bytes) -> None:
        """Send all of `data`; Cut if that side is gone."""
        try:
            side.sendall(data)
        except OSError as error:
            raise Cut from error

    def hold(self, release: threading.Event, closing: threading.Event) -> None:
        """Wait for `release`; Cut if a side goes or the proxy closes meanwhile."""
        while not release.wait(POLL_SECONDS):
            if closing.is_set():
                raise Cut
            self._poll(0)

    def rest_to_client(self) -> None:
        """Hand over what the server said last, unasked (an error before it closed)."""
        rest = self._read[self.server]
        if rest:
            self.send(self.client, bytes(rest))

    def cut(self) -> None:
        """End both sides at once; safe from any thread. They are closed by the thread that serves
        them alone: another connection could get the number of a closed socket for which that thread
        waits, and it would wait for that connection."""
        for side in (self.client, self.server):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # gone already

    def close(self) -> None:
        """End and close both sides."""
        self.cut()
        self.client.close()
        self.server.close()

    def _wait_for(self, side: socket.socket) -> None:
        before = len(self._read[side])
        while len(self._read[side]) == before:
            self._poll(None)

    def _poll(self, timeout: float | None) -> None:
        try:
            ready, _, _ = select.select([self.client, self.server], [], [], timeout)
            for side in ready:
                data = side.recv(RECEIVE_BYTES)
                if not data:
                    raise Cut
                self._read[side] += data
        except OSError as error:
            raise Cut from error


class Proxy:
    """Base of the proxies: threads, rules, and what was seen. Use as a context manager."""

    def __init__(self, upstream: Address) -> None:
        self.upstream = upstream
        """The server behind; may be changed for connections to come (a failover)."""
        self.refusing = False
        """Close new connections at once, as a server that is away does."""
        self.seen: deque[Request] = deque(maxlen=REMEMBERED)
        """The last requests, oldest first."""
        self.counts: Counter[str] = Counter()
        """How many requests of each kind were read."""
        self.faults: Counter[str] = Counter()
        """How often rules acted, by their label."""
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._links: set[Link] = set()
        self._threads: list[threading.Thread] = []
        self._count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def when(self, kind: str, phase: Phase, deed: Deed, **more: Any) -> Rule:
        """Add a rule; ``more`` are its further fields."""
        rule = Rule(kind, phase, deed, **more)
        with self._lock:
            self._rules.append(rule)
        return rule

    def forget(self, *rules: Rule) -> None:
        """Take these rules away (all without arguments) and let go what they hold."""
        with self._lock:
            gone = list(rules) or list(self._rules)
            self._rules = [rule for rule in self._rules if rule not in gone]
        for rule in gone:
            rule.release.set()

    @property
    def links(self) -> int:
        """How many connections there are."""
        with self._lock:
            return len(self._links)

    def cut_all(self) -> None:
        """End every connection there is; new ones are accepted."""
        with self._lock:
            for link in self._links:
                link.cut()

    def close(self) -> None:
        """Close the listener and every connection, and join the threads."""
        self._closing.set()
        # shutdown wakes accept(); close alone would leave it waiting
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._acceptor.join()
        self.forget()
        self.cut_all()
        for thread in self._threads:
            thread.join()

    def note(self, request: Request) -> None:
        """Remember a request that was read."""
        with self._lock:
            self.seen.append(request)
            self.counts[request.kind] += 1

    def perform(
        self, link: Link, request: Request, phase: Phase, reply: bytes = b""
    ) -> Rule | None:
        """Do what the first rule that acts here says; it is returned if it wants an error sent."""
        with self._lock:
            takes = (rule for rule in self._rules if rule.takes(request, phase, reply))
            rule = next(takes, None)
            if rule is None:
                return None
            self.faults[rule.label] += 1
            rule.reached.set()
        if rule.call is not None:
            rule.call(request)
        rule.done.set()
        if rule.deed is Deed.CUT:
            raise Cut
        if rule.deed is Deed.HOLD:
            link.hold(rule.release, self._closing)
        return rule if rule.deed is Deed.ERROR else None

    def serve(self, link: Link) -> None:
        """Pass one connection's messages along until Cut."""
        raise NotImplementedError

    def _connect(self) -> socket.socket:
        if isinstance(self.upstream, str):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(self.upstream)
            return server
        return socket.create_connection(self.upstream)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._count += 1
            thread = threading.Thread(
                target=self._run, args=(client, self._count), name="proxy-link", daemon=True
            )
            self._threads = [known for known in self._threads if known.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _run(self, client: socket.socket, number: int) -> None:
        try:
            if self.refusing or self._closing.is_set():
                raise ConnectionRefusedError
            server = self._connect()
        except OSError:
            client.close()
            return
        for side in (client, server):
            if side.family is not socket.AF_UNIX:
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, server, number)
        with self._lock:
            self._links.add(link)
        try:
            self.serve(link)
        except Cut:
            pass
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()
