"""The data directory of `countersink up`, which one process at a time may use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from countersink.cli.failures import Failure
from countersink.cli.servers.base import write_private

ENVIRONMENT_FILE = "environment.sh"
"""Sets the URLs in a shell that sources it; holds passwords, so only its owner may read it."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory, and hold its lock: the kernel frees it however this process ends.

    Raises Failure when another `up` holds it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            raise Failure(
                f"another countersink up (process {holder or 'unknown'}) is using {directory}: "
                "stop that one, or name another directory with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def write_environment(directory: Path, urls: Mapping[str, str]) -> Path:
    """Write the shell file that exports the URLs of the servers in this directory."""
    lines = ["# Written by `countersink up`; holds passwords."]
    # the URLs are ours: nothing in them needs quoting inside ''
    lines += [f"export {variable}='{url}'" for variable, url in urls.items()]
    file = directory / ENVIRONMENT_FILE
    write_private(file, "\n".join(lines) + "\n")
    return file
