"""``python -m benchmarks``: one table, and benchmarks/results.json."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import environment, results
from benchmarks.calls import Calls
from benchmarks.measuring import Benchmark, Measurement, Result, Wrong, take_turns
from benchmarks.peers.celery_batches import CeleryBatches
from benchmarks.peers.hincrby import Hincrby
from benchmarks.peers.per_event import PerEvent
from benchmarks.peers.rq_jobs import RqJobs
from benchmarks.pipeline import EndToEnd
from benchmarks.raw_upserts import RawUpserts
from benchmarks.rows import GROUPS, NAMES
from benchmarks.site import Site, open_site
from countersink.cli.servers import ServerError

OUTPUT: Final = Path(__file__).with_name("results.json")
ROUNDS, SECONDS = 5, 5.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 0.2


def make(site: Site) -> dict[str, Benchmark]:
    """All rows, by name."""
    benchmarks: list[Benchmark] = [
        *(Calls(site, name) for name in GROUPS[0]),
        EndToEnd(site, "end_to_end_zipf", distinct=False),
        EndToEnd(site, "end_to_end_distinct", distinct=True),
        RawUpserts(site),
        PerEvent(site, "peer_update", slotted=False),
        PerEvent(site, "peer_slotted_upsert", slotted=True),
        RqJobs(site),
        CeleryBatches(site),
        Hincrby(site),
    ]
    return {benchmark.name: benchmark for benchmark in benchmarks}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"one run of {QUICK_SECONDS} s per row: shows that all rows run, measures nothing",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        help=f"just these rows: {', '.join(NAMES)}",
    )
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    parser.add_argument(
        "--output",
        type=Path,
        help=f"the JSON file (default: {OUTPUT.name} beside this module for a whole run that is not"
        " quick, else none)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 0 measured (whatever the figures are), 1 failed."""
    options = parse(arguments)
    wanted = set(options.only or NAMES)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if options.quick else (ROUNDS, SECONDS)
    output: Path | None = options.output
    if output is None and not options.quick and not options.only:
        output = OUTPUT
    log = Console(stderr=True, highlight=False)

    def progress(name: str, number: int, measurement: Measurement) -> None:
        log.print(
            f"{number}/{rounds} {name}: {measurement.per_second:,.0f}/s"
            f" ({measurement.seconds:.1f} s)"
        )

    measured: list[Result] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="countersink-benchmarks-") as directory,
            open_site(Path(directory), options.server) as site,
        ):
            where = environment.describe(
                site, server=options.server, rounds=rounds, seconds=seconds
            )
            benchmarks = make(site)
            for group in GROUPS:
                chosen = [benchmarks[name] for name in group if name in wanted]
                measured += take_turns(chosen, rounds=rounds, seconds=seconds, progress=progress)
    except (ServerError, Wrong) as error:
        log.print(f"error: {error}", style="red", markup=False)
        return 1
    whole = results.document(where, results.as_rows(measured))
    if output is not None:
        results.write(output, whole)
        log.print(f"written to {output}")
    results.show(Console(width=160 if not sys.stdout.isatty() else None), whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
