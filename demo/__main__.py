"""`python -m demo [--log FILE]`: the command line of the demo. The exit status is 0 only if
accepted and counted increments are equal.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from countersink.cli.errors import ServerError
from demo.report import Report
from demo.show import Failed, show_log, show_traffic


def main() -> int:
    """Run the demo in a temporary directory, and return the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="count this web server's access log"
    )
    log: Path | None = parser.parse_args().log
    report = Report()
    if log is not None and not log.is_file():
        report.error(f"{log} is not a file")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # removes the directory
    with tempfile.TemporaryDirectory(prefix="countersink-demo-") as directory:
        try:
            show = show_traffic if log is None else show_log
            return show(Path(directory), report, log)
        except (Failed, ServerError) as failure:
            report.error(str(failure))
            return 1
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
