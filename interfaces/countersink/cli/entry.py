"""The console script ``countersink``: the message when packages of the extra ``server`` are
missing, and file descriptors 0 to 2. It imports nothing that the base install lacks before it has
looked."""

import os
import sys
from importlib.util import find_spec
from typing import Final, NoReturn

SERVER_MODULES: Final = ("click", "msgspec", "pymysql", "rich")
"""What the commands import that only the ``server`` extra installs."""


def main() -> NoReturn:
    """Run the command line and exit with its status (see ``Exit`` in ``cli/errors.py``).

    Without the ``server`` extra it says how to install it, and exits with 1.
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
    """See to it that the descriptors 0 to 2 are taken.

    The next file or connection that is opened would get the number of one that was closed
    (``countersink totals c >&-``): it would be read, or written to, as if it were that one. What is
    printed to one that was closed goes nowhere; reading from it fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given: this one.
            os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
