"""Where the server programs are, and what to do when they are not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from countersink.cli.servers.errors import ServerMissing

# Debian keeps servers in sbin, which is not on the PATH of ordinary users.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/usr/libexec:/sbin:/bin"


def find(program: str) -> str | None:
    """The path of a program, on the PATH or where systems keep their servers."""
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", ""), _SYSTEM_PATH]))
    return shutil.which(program, path=path)


def _configured(variable: str) -> str | None:
    """The program that a variable of the environment names; None where it is not set."""
    configured = os.environ.get(variable)
    if not configured:
        return None
    if found := shutil.which(configured):
        return found
    raise ServerMissing(f"{variable} is {configured!r}, which is not a program")


def redis_server() -> list[str]:
    """The command that runs Redis: $COUNTERSINK_REDIS_SERVER, or the system's own.

    Raises ServerMissing.
    """
    if configured := _configured("COUNTERSINK_REDIS_SERVER"):
        return [configured]
    if found := find("redis-server"):
        return [found]
    raise ServerMissing("redis-server is not installed: install the package redis-server")


MARIADB_ADVICE = "install the packages mariadb-server-core and mariadb-client-core"


def mariadbd() -> list[str]:
    """The command that runs MariaDB. Raises ServerMissing."""
    if found := find("mariadbd"):
        return [found]
    raise ServerMissing(f"mariadbd is not installed: {MARIADB_ADVICE}")


def mariadb_install_db() -> list[str]:
    """The command that makes a MariaDB data directory. Raises ServerMissing."""
    found = find("mariadb-install-db")
    # the script needs the second program, which Debian keeps in the other package
    for program, path in (
        ("mariadb-install-db", found),
        ("my_print_defaults", find("my_print_defaults")),
    ):
        if path is None:
            raise ServerMissing(f"{program} is not installed: {MARIADB_ADVICE}")
    assert found is not None
    return [found]


def mysql_tree() -> Path:
    """Where `make test-mysql` puts a MySQL of its own: a file system tree, not an installation."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "countersink" / "mysql"


def mysqld() -> list[str]:
    """The command that runs MySQL: $COUNTERSINK_MYSQLD, the cached tree, or the system's own.

    Raises ServerMissing.
    """
    if configured := _configured("COUNTERSINK_MYSQLD"):
        return [configured]
    tree = mysql_tree()
    if (tree / "usr/sbin/mysqld").exists():
        return _from_tree(tree)
    installed = find("mysqld")
    if installed and not is_mariadb(installed):
        return [installed]
    raise ServerMissing("MySQL is not installed: `make test-mysql` sets up a private one")


def is_mariadb(program: str) -> bool:
    """Whether a program called mysqld is MariaDB in truth."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return re.search("mariadb", said.stdout, re.IGNORECASE) is not None


def _from_tree(tree: Path) -> list[str]:
    """Run mysqld with the C library of its own tree, by that tree's loader: no chroot, no root."""
    loaders = sorted(
        loader
        for place in ("lib64", "usr/lib64", "usr/lib")
        for loader in tree.glob(f"{place}/ld-linux*.so.*")
    )
    if not loaders:
        raise ServerMissing(f"{tree} is incomplete: remove it, then run `make test-mysql`")
    usr = tree / "usr"
    libraries = [*sorted(usr.glob("lib/*-linux-gnu")), usr / "lib/mysql/private", usr / "lib"]
    return [
        str(loaders[0]),
        "--library-path",
        ":".join(map(str, libraries)),
        str(usr / "sbin/mysqld"),
        # must come before all other options
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr / 'share/mysql'}",
    ]
