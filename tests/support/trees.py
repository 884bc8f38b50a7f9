"""Servers that the scripts unpack into the cache directory as trees of files."""

import subprocess
import sys

from tests.support.processes import PROJECT


def why_missing(script: str) -> str | None:
    """Run a script that gets a server, such as ``mysql-tree.sh``: why it cannot be had here; None
    if it is there.
    """
    done = subprocess.run(
        [PROJECT / "scripts" / script],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
