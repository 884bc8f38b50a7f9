"""The `countersink` command with chunks of another size in backfills:
`python -m tests.support.run_chunks LINES ARGUMENTS…`."""

import sys

from countersink.backfill.count import task
from countersink.cli.entry import main as countersink


def main() -> object:
    """Run the command."""
    vars(task)["LINES"] = int(sys.argv.pop(1))
    return countersink()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]
