"""The console script ``countersink``. It checks that the packages of the extra ``server`` are
installed, opens file descriptors 0 to 2 where they are closed, and runs the command line.

Until that check, it imports only what the base install has.
"""

import os
import sys
from importlib.util import find_spec
from typing import Final, NoReturn

SERVER_MODULES: Final = ("click", "msgspec", "pymysql", "rich")
"""Modules that commands import, and that only the extra ``server`` installs."""


def main() -> NoReturn:
    """Run the command line, and exit with its status (see ``Exit`` in ``cli/errors.py``).

    If the extra ``server`` is not installed, print how to install it, and exit with 1.
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
    """Open /dev/null in place of each of the descriptors 0 to 2 that is closed.

    Otherwise the next file or connection that this process opens would get the number of a closed
    descriptor (``countersink totals c >&-`` closes 1), and the output of the command would be
    written to it. Now output to a closed descriptor is discarded, and reading from it fails.
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
