"""Just enough of the MySQL client/server protocol to see statements and where replies end.

From the protocol's documentation ("Client/Server Protocol" in MySQL's source documentation):
packets are a 3-byte length, a sequence number and a payload; a payload of 2**24-1 bytes goes on in
the next packet. Optional features that move the boundaries are masked out of the server's greeting.
"""

import re
import socket
import struct

from tests.support.proxies.tcp import Link

COM_QUIT = 0x01
COM_QUERY = 0x03
LARGEST_PACKET = 0xFFFFFF
MORE_RESULTS = 0x0008

# Capabilities: what the proxy could not read through, or what would change where replies end.
COMPRESS = 1 << 5
TLS = 1 << 11
DEPRECATE_EOF = 1 << 24
OPTIONAL_METADATA = 1 << 25
COMPRESS_ZSTD = 1 << 26
QUERY_ATTRIBUTES = 1 << 27
MASKED = COMPRESS | TLS | DEPRECATE_EOF | OPTIONAL_METADATA | COMPRESS_ZSTD | QUERY_ATTRIBUTES

# First match wins. Kinds are the points of a transaction that tests name.
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for kind, pattern in (
        ("begin", r"(BEGIN|START\s+TRANSACTION)\b"),
        ("commit", r"COMMIT\b"),
        ("rollback", r"ROLLBACK\b"),
        ("session", r"SET\b"),
        ("guards", r"INSERT\s.*?\bapplied_entry\b"),
        ("guard_lookup", r"SELECT\s.*?\bapplied_entry\b"),
        ("prune", r"DELETE\s.*?\bapplied_entry\b"),
        ("slots", r"INSERT\s.*?\bcounter_slot\b"),
        ("ledger", r"INSERT\s.*?\bcounter_ledger\b"),
        ("dead", r"INSERT\s.*?\bdead_row\b"),
        ("dead_group", r"INSERT\s.*?\bdead_group\b"),
        ("dead_delete", r"DELETE\s.*?\bdead_row\b"),
        ("watermark", r"UPDATE\s.*?\bcontrol\b"),
        ("control", r"SELECT\s.*?\bcontrol\b"),
        ("day", r"SELECT\s.*?\bcounter_keys\b.*?FOR UPDATE"),
        ("room", r"UPDATE\s.*?\bcounter_keys\b"),
        ("counter", r"INSERT\s.*?\bcounter\b"),
        ("lease", r"(INSERT|UPDATE|DELETE|SELECT)\s.*?\blease\b"),
        ("select", r"SELECT\b"),
    )
)

SQLSTATES = {1213: "40001", 1205: "HY000", 1020: "HY000", 1021: "HY000", 1142: "42000"}
MESSAGES = {
    1020: "Record has changed since last read in table 'counter_slot'",
    1021: "Disk full (/tmp/#sql); waiting for someone to free some space...",
    1114: "The table 'counter_slot' is full",
    1142: "INSERT command denied to user 'counter'@'localhost' for table 'counter_slot'",
    1205: "Lock wait timeout exceeded; try restarting transaction",
    1213: "Deadlock found when trying to get lock; try restarting transaction",
    1290: "The MySQL server is running with the --read-only option so it cannot execute this",
    1792: "Cannot execute statement in a READ ONLY transaction",
    1836: "Running in read-only mode",
    3100: "Error on observer while running replication hook 'before_commit'",
}
ROLLS_BACK = frozenset({1213, 1020})
"""Errors with which a server has already rolled the whole transaction back."""


def kind_of(sql: str) -> str:
    """What a statement is for: one of KINDS' names, else "other"."""
    head = sql.lstrip()[:400]
    return next((kind for kind, pattern in KINDS if pattern.match(head)), "other")


def take_packet(link: Link, side: socket.socket) -> tuple[bytes, bytes, int]:
    """(payload, the bytes as they came, last sequence number) of one logical packet."""
    payload, raw = b"", b""
    while True:
        header = link.take(side, 4)
        size = int.from_bytes(header[:3], "little")
        body = link.take(side, size)
        payload += body
        raw += header + body
        if size < LARGEST_PACKET:
            return payload, raw, header[3]


def packet(payload: bytes, sequence: int) -> bytes:
    """A packet of less than 2**24-1 bytes of payload."""
    return len(payload).to_bytes(3, "little") + bytes([sequence & 0xFF]) + payload


def error_packet(code: int, sequence: int) -> bytes:
    """An ERR packet for the code, with its usual SQLSTATE and message."""
    state = SQLSTATES.get(code, "HY000")
    message = MESSAGES.get(code, "injected by a test")
    return packet(
        b"\xff" + struct.pack("<H", code) + b"#" + state.encode() + message.encode(), sequence
    )


def query_packet(sql: str) -> bytes:
    """A COM_QUERY packet."""
    return packet(bytes([COM_QUERY]) + sql.encode(), 0)


def masked_greeting(payload: bytes) -> bytes:
    """The server's first packet without the capabilities the proxy cannot follow."""
    if payload[0] != 10:  # an error instead of a greeting: too many connections, host blocked
        return payload
    # after the version: thread id (4), salt (8), filler (1), low capabilities (2), charset (1),
    # status (2), high capabilities (2)
    low = payload.index(b"\0", 1) + 1 + 4 + 8 + 1
    high = low + 2 + 1 + 2
    capabilities = (
        int.from_bytes(payload[low : low + 2] + payload[high : high + 2], "little") & ~MASKED
    )
    packed = capabilities.to_bytes(4, "little")
    return payload[:low] + packed[:2] + payload[low + 2 : high] + packed[2:] + payload[high + 2 :]


def log_in(link: Link) -> bool:
    """Pass greeting and authentication along; True once the server said OK."""
    payload, _, sequence = take_packet(link, link.server)
    link.send(link.client, packet(masked_greeting(payload), sequence))
    if payload[0] != 10:
        return False
    client_speaks = True
    while True:
        if client_speaks:
            link.send(link.server, take_packet(link, link.client)[1])
        payload, raw, _ = take_packet(link, link.server)
        link.send(link.client, raw)
        if payload[0] == 0x00:
            return True
        if payload[0] == 0xFF:
            return False
        # 01 03 = "your cached password was right": the OK follows by itself
        client_speaks = payload[:2] != b"\x01\x03"


def take_reply(link: Link) -> bytes:
    """All packets of the reply to one command, as they came."""
    whole = b""
    while True:
        payload, raw, _ = take_packet(link, link.server)
        whole += raw
        if payload[0] == 0xFF:
            return whole
        if payload[0] == 0x00:
            status = _status_of_ok(payload)
        else:
            rest, status = _take_rows(link, columns=_length(payload, 0)[0])
            whole += rest
        if not status & MORE_RESULTS:
            return whole


def _take_rows(link: Link, columns: int) -> tuple[bytes, int]:
    raws = [take_packet(link, link.server)[1] for _ in range(columns + 1)]  # and their EOF
    while True:
        payload, raw, _ = take_packet(link, link.server)
        raws.append(raw)
        if payload[0] == 0xFF:
            return b"".join(raws), 0
        if payload[0] == 0xFE and len(payload) < 9:
            return b"".join(raws), int.from_bytes(payload[3:5], "little")


def _status_of_ok(payload: bytes) -> int:
    _, at = _length(payload, 1)
    _, at = _length(payload, at)
    return int.from_bytes(payload[at : at + 2], "little")


def _length(payload: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the position after it."""
    first = payload[at]
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(payload[at + 1 : at + 1 + size], "little"), at + 1 + size
