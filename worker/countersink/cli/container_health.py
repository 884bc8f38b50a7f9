"""``python -m countersink.cli.container_health [worker|scheduler|jobs]``: a container's check.

Status 0 when such a process of this host has told Redis of itself in the last minute, else 1.
Without an argument it is a worker.
"""

import os
import socket
import sys
from collections.abc import Sequence

from countersink.cli import secrets
from countersink.stream.connection import connect, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import process_key, worker_key

WORKER = "worker"
KINDS = (WORKER, "scheduler", "jobs")


def main(arguments: Sequence[str] = ()) -> int:
    """Look, and say on stderr what is wrong."""
    kind = arguments[0] if arguments else WORKER
    if kind not in KINDS:
        print(f"{kind!r} is none of {', '.join(KINDS)}", file=sys.stderr)
        return 2
    url = os.environ.get("COUNTERSINK_REDIS_URL", "")
    if kind != WORKER:
        url = os.environ.get("COUNTERSINK_JOBS_REDIS_URL") or url
    secrets.remember(url)
    # a process is named after its host, its number and a random part; the key expires by itself
    name = f"{socket.gethostname()}-*"
    pattern = worker_key(name) if kind == WORKER else process_key(kind, name)
    try:
        client = connect(url, client_name="countersink-health")
        with mapped():
            if any(True for _ in client.scan_iter(pattern, count=1000)):
                return 0
    except StreamError as error:
        print(secrets.scrub(str(error)), file=sys.stderr)
        return 1
    print(f"no {kind} process of this host has reported for a minute", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
