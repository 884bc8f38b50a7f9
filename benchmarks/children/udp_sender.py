"""Sends StatsD lines to a UDP port, one per datagram, as fast as none of them is dropped.

Between two bursts it looks into /proc/net/udp how much waits in the receiver's queue, and waits
while that is more than `MOST_BYTES`: so the receiver always has something to do, and its buffer is
never full. The kernel cuts one send into 50 datagrams (UDP_SEGMENT): a sender in Python that calls
it for each would be slower than what it is to measure.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

from benchmarks.measuring import Wrong
from benchmarks.processes import answer, first_message
from benchmarks.workload import SEQUENCE, zipf_keys

UDP_SEGMENT: Final = 103
"""udp(7); Python has no name for it."""
SEGMENTS: Final = 50
BURST: Final = 1_000
"""Datagrams between two looks at the queue."""
MOST_BYTES: Final = 2_000_000
"""Of the kernel's memory, about 2,600 datagrams: far below the receivers' 16 MiB."""


def line(key: str) -> bytes:
    """The line for a key of the workload. All are of one length, as segments have to be."""
    return f"web.{key.strip('/').replace('/', '-')}.hits:1|c".encode()


def queue_of(port: int) -> tuple[int, int]:
    """Bytes that wait in the receiver's queue, and datagrams that were dropped."""
    for entry in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = entry.split()
        if fields[1] == f"0100007F:{port:04X}":
            return int(fields[4].partition(":")[2], 16), int(fields[-1])
    raise Wrong(f"nobody listens at port {port}")


def main() -> None:
    """Send the sequence over and over for so long."""
    message = first_message()
    port, seconds = message["port"], message["seconds"]
    lines = [line(key) for key in zipf_keys()]
    bursts = [
        [b"".join(lines[at : at + SEGMENTS]) for at in range(start, start + BURST, SEGMENTS)]
        for start in range(0, SEQUENCE, BURST)
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(lines[0]))
        passes, waits = 0, 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for burst in bursts:
                for datagrams in burst:
                    sender.send(datagrams)
                while queue_of(port)[0] > MOST_BYTES:
                    waits += 1
            passes += 1
        while queue_of(port)[0]:
            pass
        took = time.perf_counter() - begun
        dropped = queue_of(port)[1]
    if dropped:
        raise Wrong(f"{dropped} datagrams were dropped")
    answer({"passes": passes, "events": passes * SEQUENCE, "seconds": took, "waits": waits})


if __name__ == "__main__":
    main()
