"""``python -m benchmarks``: its tables, benchmarks/results.json, and how often and for how long
each row is measured."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

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
from benchmarks.kills import Kills
from benchmarks.measuring import Benchmark, Measurement, Wrong, take_turns
from benchmarks.peers import jobs
from benchmarks.peers.by_hand import ByHand
from benchmarks.peers.celery_batches import CeleryBatches
from benchmarks.peers.per_event import PerEvent
from benchmarks.pipeline import EndToEnd
from benchmarks.raw_upserts import RawUpserts
from benchmarks.row_counts import RowCounts
from benchmarks.rows import (
    BESIDE,
    BY_HAND,
    CLUSTERS,
    CONSTANTS,
    GROUPS,
    HTTP_READS,
    KILLS,
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
ROUNDS, SECONDS = 3, 3.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 0.2
QUIET_WAYS: Final[tuple[Way, ...]] = ("nonstop", "peer_rc", "peer_rr")
ALL: Final = (
    *(*NAMES, *READS, *ROW_COUNTS, *HTTP_READS, *UNIQUE_YEAR),
    *(KILLS, *CLUSTERS, *CONSTANTS),
)
"""What --only may name."""
BESIDE_WAYS: Final[tuple[Way, ...]] = ("scheduled", "nonstop", "peer_rc", "peer_rr")


class Special(Protocol):
    """A section of results.json that is measured as a whole."""

    @property
    def name(self) -> str:
        """Its name for --only."""

    def measure(self, seconds: float) -> list[dict[str, Any]]:
        """Its rows. Raises Wrong."""


def make(site: Site) -> dict[str, Benchmark]:
    """All rows that can be measured there, by name."""
    benchmarks: list[Benchmark] = [
        *(Calls(site, name) for name in GROUPS[0]),
        EndToEnd(site, "end_to_end_zipf", distinct=False),
        EndToEnd(site, "end_to_end_distinct", distinct=True),
        RawUpserts(site),
        PerEvent(site, "peer_update", slotted=False),
        PerEvent(site, "peer_slotted_upsert", slotted=True),
        *(ByHand(site, name.removeprefix("peer_")) for name in BY_HAND),
        *(jobs.Jobs(site, name) for name in jobs.MODULES),
        CeleryBatches(site),
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


SPECIAL: Final[dict[str, tuple[Callable[[Site], Special], Sequence[str]]]] = {
    "reads": (Reads, tuple(QUERIES)),
    "row_counts": (RowCounts, ("row_counts",)),
    "http_reads": (HttpReads, HTTP_QUESTIONS),
    "unique_year": (UniqueYear, ("unique_year",)),
    KILLS: (Kills, ()),
}
"""What is no rate, by its section: what measures it, and its rows, each of which both servers
have."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"one run of {QUICK_SECONDS} s per row: shows that all rows run, measures nothing",
    )
    parser.add_argument("--rounds", type=int, help="how often each row is measured")
    parser.add_argument("--seconds", type=float, help="for how long at least")
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
    parser.add_argument(
        "--afresh",
        action="store_true",
        help="do not go on with what a run of the same arguments has left behind",
    )
    options = parser.parse_args(arguments)
    quick = options.quick
    options.rounds = options.rounds or (QUICK_ROUNDS if quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if quick else SECONDS)
    if options.output is None and options.merge:
        options.output = OUTPUT
    if options.output is None and not (quick or options.only or options.without):
        options.output = OUTPUT
    return options


class Run:
    """One run of the chosen rows, server after server.

    Attributes:
        document: what results.json is to hold.
    """

    def __init__(self, options: argparse.Namespace, log: Console) -> None:
        self._kept = results.Unfinished(options)
        self.document = self._kept.document
        self._options = options
        self._wanted = set(options.only or ALL).difference(self._kept.done)
        self._log = log
        if self._kept.done:
            log.print(f"going on: {len(self._kept.done)} are measured already")

    def run(self) -> None:
        """Measure. Raises ServerError, Wrong."""
        chosen: Kind = self._options.server
        for kind in sorted(SERVERS, key=lambda kind: kind != chosen):
            names = {
                name
                for name in self._wanted.difference(CLUSTERS, CONSTANTS)
                if (server_of(name) or chosen) == kind
            }
            why = self._why_not(kind)
            if why is None and kind != chosen and names:
                why = why_unavailable(kind)
            missing = {name: why for name in names if server_of(name) == kind}
            missing |= dict.fromkeys(http.NAMES, http.why_unavailable())
            missing |= {name: jobs.why_missing(name) for name in jobs.MODULES}
            reasons = {name: reason for name in names if (reason := missing.get(name))}
            for reason in sorted(set(reasons.values())):
                self._log.print(f"left out: {reason}", style="yellow", markup=False)
            for name, reason in sorted(reasons.items()):
                self._leave_out(kind, name, reason)
            names = names.difference(reasons)
            if names or (kind == chosen and "date" not in self.document["environment"]):
                self._on(kind, names)
        for place in PLACES:
            if f"clusters_{place}" in self._wanted:
                self._step("clusters", f"clusters_{place}", work=partial(self._in, place))
        for kind in SERVERS:
            if on(kind, "constants") in self._wanted:
                self._step("constants", on(kind, "constants"), work=partial(self._costs, kind))

    def _in(self, place: str) -> list[dict[str, Any]]:
        why = self._why_not(place) or clusters.why_missing(place)
        if why is not None:
            self._log.print(f"{place}: {why}", style="yellow", markup=False)
            return clusters.missing(place, why)
        return clusters.measure(place, self._options.seconds)

    def _costs(self, kind: Kind) -> list[dict[str, Any]]:
        why = self._why_not(kind) or why_unavailable(kind)
        if why is not None:
            return [{"name": on(kind, "constants"), "missing": why}]
        return [constants.measure(kind, self._options.seconds)]

    def _why_not(self, place: str) -> str | None:
        """Of a place or a kind of server: whether the command line leaves it out."""
        left_out = self._options.without
        return f"left out by --without {left_out}" if place == left_out else None

    def _on(self, kind: Kind, names: set[str]) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="countersink-benchmarks-") as directory,
            open_site(Path(directory), kind) as site,
        ):
            known = self.document["environment"]
            if "date" in known:
                known[kind] = site.mysql_version()
            else:
                known |= environment.describe(
                    site,
                    server=kind,
                    rounds=self._options.rounds,
                    seconds=self._options.seconds,
                )
            benchmarks = make(site)
            for group in GROUPS:
                chosen = [name for name in group if name in names]
                if chosen:
                    rows = [benchmarks[name] for name in chosen]
                    self._step("rows", *chosen, work=partial(self._turns, rows))
            for section, (made, _) in SPECIAL.items():
                special = made(site)
                if special.name in names:
                    work = partial(special.measure, self._options.seconds)
                    self._step(section, special.name, work=work)

    def _turns(self, group: Sequence[Benchmark]) -> list[dict[str, Any]]:
        rounds, seconds = self._options.rounds, self._options.seconds
        taken = take_turns(group, rounds=rounds, seconds=seconds, progress=self._progress)
        return results.as_rows(taken)

    def _step(self, section: str, *names: str, work: Callable[[], list[dict[str, Any]]]) -> None:
        """Measure what goes together, and keep it."""
        begun = time.monotonic()
        rows = work()
        took = time.monotonic() - begun
        self._log.print(f"{', '.join(names)}: {took:.0f} s in all", style="dim")
        self._kept.add(section, rows, names, took)

    def _leave_out(self, kind: Kind, name: str, why: str) -> None:
        section = name.removesuffix(f"_{kind}")
        rows = [on(kind, row) for row in SPECIAL[section][1]] if section in SPECIAL else [name]
        self._kept.add(
            section if section in SPECIAL else "rows",
            [{"name": row, "missing": why} for row in rows],
            (name,),
        )

    def _progress(self, name: str, number: int, measurement: Measurement) -> None:
        self._log.print(
            f"{number}/{self._options.rounds} {name}: {measurement.per_second:,.0f}/s"
            f" ({measurement.seconds:.1f} s)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 0 measured (whatever the figures are), 1 failed."""
    options = parse(arguments)
    output: Path | None = options.output
    log = Console(stderr=True, highlight=False)
    run = Run(options, log)
    try:
        run.run()
    except (ServerError, Wrong) as error:
        log.print(f"error: {error}", style="red", markup=False)
        return 1
    whole = results.ordered(run.document)
    if output is not None:
        kept = results.merged(json.loads(output.read_text()), whole) if options.merge else whole
        results.write(output, kept)
        results.Unfinished.forget(options)
        log.print(f"written to {output}")
    tables.show(Console(width=160 if not sys.stdout.isatty() else None, highlight=False), whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
