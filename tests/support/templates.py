"""Data directories made once per machine and copied: a new server is then ready in a second."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from countersink.cli import servers as server_programs
from countersink.cli.servers import mariadbd
from tests.support import servers
from tests.support.servers import FAST, Kind, MySQLServer, mysqld

SMALL: dict[Kind, tuple[str, ...]] = {
    # small redo logs: less to copy and to write; tests never fill them. Without TLS, unless a later
    # option names a certificate: since 11.4 a key is made at each start, in up to two seconds
    "mariadb": ("--innodb-log-file-size=16M", "--skip-ssl"),
    "mysql": ("--innodb-redo-log-capacity=32M",),
}


UNUSED_S = 7 * 86_400
"""Seconds after which a template that no test has taken is deleted."""


def template(kind: Kind) -> Path:
    """A stopped server's directory, of this version of the server and of the way it is made."""
    program = mysqld() if kind == "mysql" else mariadbd()
    version = subprocess.run(
        [*program, "--version"], capture_output=True, text=True, check=True
    ).stdout
    recipes = (server_programs.__file__, servers.__file__)
    made_by = "".join(Path(recipe).read_text() for recipe in recipes) + repr(SMALL[kind])
    key = hashlib.sha256((version + made_by).encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    parent = Path(cache) / "countersink" / "templates"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = parent / f"{kind}-{key}"
    with (parent / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at the same moment
        if not wanted.exists():
            for old in parent.glob(f"{kind}-*"):
                # Tests of another checkout may be using theirs now.
                if time.time() - old.stat().st_mtime > UNUSED_S:
                    shutil.rmtree(old, ignore_errors=True)
            unfinished = Path(tempfile.mkdtemp(prefix="new-", dir=parent))
            with MySQLServer(unfinished, kind=kind, extra=(*FAST, *SMALL[kind])):
                pass
            unfinished.rename(wanted)
        os.utime(wanted)
    return wanted
