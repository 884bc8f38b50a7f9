"""The console script ``countersink``: it checks for the packages of the extra ``server``, opens
file descriptors 0 to 2 where they are closed, and runs the command line.

Until the packages are checked, it imports only what the base install has.
"""

import os
import sys
from importlib.util import find_spec
from typing import Final, NoReturn

SERVER_MODULES: Final = ("click", "msgspec", "pymysql", "rich")
"""Modules that the commands import and only the extra ``server`` installs."""


def main() -> NoReturn:
    """Run the command line and exit with its status (see ``Exit`` in ``cli/errors.py``).

    Without the extra ``server``, print how to install it, and exit with 1.
    """
    missing = [name for name in SERVER_MODULES if find_spec(name) is None]
    if missing:
        print(
            f"countersink: the command needs {', '.join(missing)}: "
            "pip install 'countersink[server]'",
            file=sys.stderr,
        )
        sys.exit(1)
    from countersink.cli.app import run

    _occupy_standard_descriptors()
    sys.exit(run())


def _occupy_standard_descriptors() -> None:
    """Open /dev/null as each of the descriptors 0 to 2 that is closed.

    The next file or connection would otherwise get the number of a closed descriptor
    (``countersink totals c >&-``), and output of the command would be written to it. Output to a
    closed descriptor is discarded; reading from it fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number: this one.
            os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
