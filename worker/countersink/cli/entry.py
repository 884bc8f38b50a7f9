"""The console script. It imports nothing that the base install lacks before it has looked."""

import sys
from importlib.util import find_spec
from typing import Final, NoReturn

SERVER_MODULES: Final = ("click", "msgspec", "pymysql", "rich")
"""What the commands import that only the ``server`` extra installs."""


def main() -> NoReturn:
    """Run the command line and exit with its status (see ``cli/exits.py``).

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
    from countersink.cli.descriptors import occupy

    occupy()
    sys.exit(run())


if __name__ == "__main__":
    main()
