"""Valkey as the server of tests: got where it can be had, and run from its own tree of files."""

from pathlib import Path

import pytest

from tests.support.servers import mysql_tree
from tests.support.trees import why_missing


def valkey_server(directory: Path) -> Path:
    """A program in ``directory`` that runs Valkey; skips the test, with the reason, where it cannot
    be had. For ``COUNTERSINK_REDIS_SERVER``.
    """
    if (why := why_missing("valkey-tree.sh")) is not None:
        pytest.skip(why)
    tree = mysql_tree().with_name("valkey")
    # The C library of the tree may be newer than the machine's: its own loader runs the server.
    loader = next(found for where in ("lib64", "lib") for found in tree.glob(f"usr/{where}/ld-*"))
    libraries = ":".join(map(str, [*sorted(tree.glob("usr/lib/*-linux-gnu")), tree / "usr/lib"]))
    program = directory / "valkey-server"
    program.write_text(
        f"#!/bin/sh\nexec '{loader}' --library-path '{libraries}'"
        f" '{tree}/usr/bin/valkey-server' \"$@\"\n"
    )
    program.chmod(0o755)
    return program
