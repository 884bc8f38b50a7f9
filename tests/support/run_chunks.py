"""The `countersink` command with chunks of another size in backfills, and with child processes for
all but the first one where `--jobs` asks for some: `python -m tests.support.run_chunks LINES
ARGUMENTS…`."""

import sys

from countersink.backfill.count import read_ahead, task
from countersink.cli.app import main as countersink


def main() -> object:
    """Run the command."""
    vars(task)["LINES"] = int(sys.argv.pop(1))
    vars(read_ahead)["FIRST"] = 1
    return countersink()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]
