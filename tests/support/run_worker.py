"""Runs one worker with the options given as a JSON object: `python -m tests.support.run_worker`."""

import json
import sys

from countersink.worker import WorkerOptions, run


def main() -> int:
    """Run until drained or signalled; the exit status is the worker's."""
    return int(run(WorkerOptions(**json.loads(sys.argv[1]))) or 0)


if __name__ == "__main__":
    sys.exit(main())
