"""The `countersink` command with chunks of another size in backfills, and with child processes for
all but the first one where `--jobs` asks for some: `python -m tests.support.run_chunks LINES
ARGUMENTS…`."""

import sys

from countersink.backfill.count import read_ahead, task
from countersink.cli.app import main as countersink


def main() -> object:
    """Run the command."""
    lines = int(sys.argv.pop(1))
    for module, name, value in ((task, "LINES", lines), (read_ahead, "THREAD_CHUNKS", 1)):
        assert name in vars(module)
        vars(module)[name] = value
    return countersink()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]
