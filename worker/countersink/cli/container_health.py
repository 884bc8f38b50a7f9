"""``python -m countersink.cli.container_health``: the health check of a worker's container.

Status 0 when a worker of this host has told Redis of itself in the last minute, else 1.
"""

import os
import socket
import sys

from countersink.cli import secrets
from countersink.stream.connection import connect, mapped
from countersink.stream.errors import StreamError
from countersink.stream.names import worker_key


def main() -> int:
    """Look, and say on stderr what is wrong."""
    url = os.environ.get("COUNTERSINK_REDIS_URL", "")
    secrets.remember(url)
    # a consumer is named after its host, its process and a random part; the key expires by itself
    pattern = worker_key(f"{socket.gethostname()}-*")
    try:
        client = connect(url, client_name="countersink-health")
        with mapped():
            if any(True for _ in client.scan_iter(pattern, count=1000)):
                return 0
    except StreamError as error:
        print(secrets.scrub(str(error)), file=sys.stderr)
        return 1
    print("no worker of this host has reported for a minute", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
