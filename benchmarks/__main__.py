"""``python -m benchmarks``: its tables, benchmarks/results.json, and how often and for how long
each row is measured."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks import (
    app_transactions,
    backfill,
    clusters,
    constants,
    environment,
    http,
    results,
    sequences,
    sightings,
    statsd,
    tables,
    tracked_inserts,
)
from benchmarks.calls import Calls
from benchmarks.compaction import Compaction
from benchmarks.compaction_load import Beside
from benchmarks.compaction_ways import Way
from benchmarks.http_reads import NAMES as HTTP_QUESTIONS
from benchmarks.http_reads import HttpReads
from benchmarks.measuring import Benchmark, Measurement, Result, Wrong, take_turns
from benchmarks.peers.celery_batches import CeleryBatches
from benchmarks.peers.hincrby import Hincrby
from benchmarks.peers.per_event import PerEvent
from benchmarks.peers.rq_jobs import RqJobs
from benchmarks.pipeline import EndToEnd
from benchmarks.raw_upserts import RawUpserts
from benchmarks.row_counts import RowCounts
from benchmarks.rows import (
    BESIDE,
    CLUSTERS,
    CONSTANTS,
    GROUPS,
    HTTP_READS,
    NAMES,
    PLACES,
    QUIET,
    READS,
    ROW_COUNTS,
    SERVERS,
    UNIQUE_YEAR,
    on,
    server_of,
)
from benchmarks.series import QUERIES, Reads
from benchmarks.site import Site, open_site, why_unavailable
from benchmarks.unique_year import UniqueYear
from countersink.cli.errors import ServerError
from tests.support.servers import Kind

OUTPUT: Final = Path(__file__).with_name("results.json")
ROUNDS, SECONDS = 5, 5.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 0.2
QUIET_WAYS: Final[tuple[Way, ...]] = ("nonstop", "peer_rc", "peer_rr")
ALL: Final = (*NAMES, *READS, *ROW_COUNTS, *HTTP_READS, *UNIQUE_YEAR, *CLUSTERS, *CONSTANTS)
"""What --only may name."""
BESIDE_WAYS: Final[tuple[Way, ...]] = ("scheduled", "nonstop", "peer_rc", "peer_rr")


def make(site: Site) -> dict[str, Benchmark]:
    """All rows that can be measured there, by name."""
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
        *sightings.rows(site),
        *(
            Compaction(site, on(site.kind, row), way)
            for row, way in zip(QUIET, QUIET_WAYS, strict=True)
        ),
        *(
            Beside(site, on(site.kind, row), way)
            for row, way in zip(BESIDE, BESIDE_WAYS, strict=True)
        ),
        *sequences.rows(site),
        *tracked_inserts.rows(site),
        *app_transactions.rows(site),
        *backfill.rows(site),
        *statsd.rows(site),
        *http.rows(site),
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
        choices=ALL,
        metavar="NAME",
        help=f"just these rows: {', '.join(ALL)}",
    )
    parser.add_argument(
        "--server",
        choices=SERVERS,
        default=SERVERS[0],
        help="of the rows without a server's name (default: %(default)s); the others are measured"
        " on both",
    )
    parser.add_argument(
        "--without", choices=SERVERS, help="leave out the rows with this server's name"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=f"the JSON file (default: {OUTPUT.name} beside this module for a whole run that is not"
        " quick, else none)",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help=f"put what is measured into {OUTPUT.name}, and leave its other rows as they are",
    )
    return parser.parse_args(arguments)


class Run:
    """One run of the chosen rows, server after server.

    Attributes:
        environment: of the run.
        measured: the rows.
        reads: the queries before and after compaction.
        row_counts: counting a big table's rows.
        http_reads: reads by HTTP of a big table.
        unique_year: different members of a year.
        clusters: backlogs applied on single servers and on clusters.
        constants: what entries, rows and cells cost.
        missing: rows that were to be measured and could not be, with the reason.
    """

    def __init__(self, options: argparse.Namespace, log: Console) -> None:
        self.environment: dict[str, Any] = {}
        self.measured: list[Result] = []
        self.reads: list[dict[str, Any]] = []
        self.row_counts: list[dict[str, Any]] = []
        self.http_reads: list[dict[str, Any]] = []
        self.unique_year: list[dict[str, Any]] = []
        self.clusters: list[dict[str, Any]] = []
        self.constants: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        self._options = options
        wanted = set(options.only or ALL)
        self._wanted = wanted.difference(CLUSTERS, CONSTANTS)
        self._places = [place for place in PLACES if f"clusters_{place}" in wanted]
        self._kinds = [kind for kind in SERVERS if on(kind, "constants") in wanted]
        self._log = log
        quick = options.quick
        self._rounds, self._seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)

    def run(self) -> None:
        """Measure. Raises ServerError, Wrong."""
        chosen: Kind = self._options.server
        for kind in sorted(SERVERS, key=lambda kind: kind != chosen):
            names = {name for name in self._wanted if (server_of(name) or chosen) == kind}
            why = None
            if kind == self._options.without:
                why = f"left out by --without {kind}"
            elif kind != chosen and names:
                why = why_unavailable(kind)
            if why is not None:
                self._leave_out(kind, {name for name in names if server_of(name) == kind}, why)
                names = {name for name in names if server_of(name) != kind}
            why = http.why_unavailable()
            if why is not None and names.intersection(http.NAMES):
                self._leave_out(kind, names.intersection(http.NAMES), why)
                names = names.difference(http.NAMES)
            if names or kind == chosen:
                self._on(kind, names)
        for place in self._places:
            self._in(place)
        for kind in self._kinds:
            why = self._why_not(kind) or why_unavailable(kind)
            if why is None:
                self.constants.append(constants.measure(kind, self._seconds))
            else:
                self.constants.append({"name": on(kind, "constants"), "missing": why})

    def _in(self, place: str) -> None:
        why = self._why_not(place) or clusters.why_missing(place)
        if why is not None:
            self._log.print(f"{place}: {why}", style="yellow", markup=False)
            self.clusters += clusters.missing(place, why)
            return
        rows = clusters.measure(place, self._seconds)
        self.clusters += rows
        for row in rows:
            self._log.print(f"{row['name']}: {row['rows_per_second']:,} rows/s")

    def _why_not(self, place: str) -> str | None:
        """Of a place or a kind of server: whether the command line leaves it out."""
        left_out = self._options.without
        return f"left out by --without {left_out}" if place == left_out else None

    def _on(self, kind: Kind, names: set[str]) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="countersink-benchmarks-") as directory,
            open_site(Path(directory), kind) as site,
        ):
            if self.environment:
                self.environment[kind] = site.mysql_version()
            else:
                self.environment = environment.describe(
                    site, server=kind, rounds=self._rounds, seconds=self._seconds
                )
            benchmarks = make(site)
            for group in GROUPS:
                self.measured += take_turns(
                    [benchmarks[name] for name in group if name in names],
                    rounds=self._rounds,
                    seconds=self._seconds,
                    progress=self._progress,
                )
            if on(kind, "reads") in names:
                self.reads += Reads(site).measure(self._seconds)
            if on(kind, "row_counts") in names:
                self.row_counts.append(RowCounts(site).measure(self._seconds))
            if on(kind, "http_reads") in names:
                self.http_reads += HttpReads(site).measure(self._seconds)
            if on(kind, "unique_year") in names:
                self.unique_year.append(UniqueYear(site).measure(self._seconds))

    def _leave_out(self, kind: Kind, names: set[str], why: str) -> None:
        self._log.print(f"{kind}: {why}", style="yellow", markup=False)
        self.missing |= dict.fromkeys(names, why)
        if on(kind, "reads") in names:
            self.reads += [{"name": on(kind, query), "missing": why} for query in QUERIES]
        if on(kind, "row_counts") in names:
            self.row_counts.append({"name": on(kind, "row_counts"), "missing": why})
        if on(kind, "http_reads") in names:
            self.http_reads += [
                {"name": on(kind, question), "missing": why} for question in HTTP_QUESTIONS
            ]
        if on(kind, "unique_year") in names:
            self.unique_year.append({"name": on(kind, "unique_year"), "missing": why})

    def _progress(self, name: str, number: int, measurement: Measurement) -> None:
        self._log.print(
            f"{number}/{self._rounds} {name}: {measurement.per_second:,.0f}/s"
            f" ({measurement.seconds:.1f} s)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 0 measured (whatever the figures are), 1 failed."""
    options = parse(arguments)
    output: Path | None = options.output
    if output is None and options.merge:
        output = OUTPUT
    if output is None and not (options.quick or options.only or options.without):
        output = OUTPUT
    log = Console(stderr=True, highlight=False)
    run = Run(options, log)
    try:
        run.run()
    except (ServerError, Wrong) as error:
        log.print(f"error: {error}", style="red", markup=False)
        return 1
    rows = results.as_rows(run.measured, run.missing)
    whole = results.document(
        run.environment,
        rows,
        run.reads,
        run.row_counts,
        run.http_reads,
        run.unique_year,
        run.clusters,
        run.constants,
    )
    if output is not None:
        kept = results.merged(json.loads(output.read_text()), whole) if options.merge else whole
        results.write(output, kept)
        log.print(f"written to {output}")
    tables.show(Console(width=160 if not sys.stdout.isatty() else None, highlight=False), whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
