"""The rows of the table: their names and order, who takes turns with whom, what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.servers import Kind

SERVERS: Final[tuple[Kind, ...]] = ("mariadb", "mysql")
"""Compaction and sequences are measured on both in one run, whatever --server says of the other
rows."""

BY_HAND: Final = (
    "peer_folded_dict",
    "peer_folded_stream",
    "peer_statsd_udp",
    "peer_hincrby",
    "peer_stream_entries",
)
"""What people write to count many events."""
GENERAL: Final = (
    "bare",
    "increment",
    "increment_dimensions",
    "increment_with_folding",
    "increment_many",
    "end_to_end_zipf",
    "end_to_end_distinct",
    "raw_upserts",
    *BY_HAND,
    "peer_dramatiq_batches",
    "peer_update",
    "peer_slotted_upsert",
    "peer_celery_batches",
    "peer_dramatiq",
    "peer_taskiq",
    "peer_arq",
    "peer_rq",
    "peer_bytewax",
    "seen_repeated",
    "peer_pfadd_repeated",
    "seen_new",
    "peer_pfadd_new",
    "backfill",
    "backfill_two_jobs",
    "peer_awk",
    "peer_upsert_per_line",
    "udp_bare",
    "statsd",
    "http_bare",
    "http_batch_1",
    "http_batch_100",
)
"""Rows of the server that --server names."""

QUIET: Final = ("compact", "peer_compact_rc", "peer_compact_rr")
"""Compaction that has the server to itself; slot rows per second."""
BESIDE: Final = ("writers", "writers_nonstop", "writers_peer_rc", "writers_peer_rr")
"""Saturated writers while compaction goes on; the writers' rows per second."""
NUMBERS_ONE: Final = ("sequence_one", "peer_for_update_one", "peer_last_insert_id_one")
"""Numbers that are handed out to one process, one after the other."""
NUMBERS_EIGHT: Final = ("sequence_eight", "peer_for_update_eight", "peer_last_insert_id_eight")
"""The same to eight processes at once, from one row."""
NUMBERS: Final = (*NUMBERS_ONE, "sequence_blocks", *NUMBERS_EIGHT)
INSERTS: Final = (
    ("insert_one", "insert_one_tracked"),
    ("insert_eight", "insert_eight_tracked"),
    ("insert_bulk", "insert_bulk_tracked"),
)
"""Rows that an application inserts into a table, without and with triggers that count them."""

TRANSACTIONS: Final = ("app_transactions", "peer_app_transactions")
"""An application's transactions, 8 at a time, which all count one thing and go on for 5 ms."""


def on(server: Kind, row: str) -> str:
    """The name of a row that both servers have."""
    return f"{row}_{server}"


def server_of(name: str) -> Kind | None:
    """The server of such a row; None for the rows of --server."""
    for server in SERVERS:
        if name.endswith(f"_{server}"):
            return server
    return None


NAMES: Final = (
    *GENERAL,
    *(on(server, row) for server in SERVERS for row in QUIET),
    *(on(server, row) for server in SERVERS for row in BESIDE),
    *(on(server, row) for server in SERVERS for row in NUMBERS),
    *(on(server, row) for server in SERVERS for pair in INSERTS for row in pair),
    *(on(server, row) for server in SERVERS for row in TRANSACTIONS),
)
READS: Final = tuple(on(server, "reads") for server in SERVERS)
"""Queries before and after compaction, which take as long as they take: no rates."""
ROW_COUNTS: Final = tuple(on(server, "row_counts") for server in SERVERS)
"""Counting a big table's rows, and tracking it: no rates either."""
HTTP_READS: Final = tuple(on(server, "http_reads") for server in SERVERS)
"""Reads by HTTP of a big table, against the bare query."""
UNIQUE_YEAR: Final = tuple(on(server, "unique_year") for server in SERVERS)
"""The different members of one key's year, in ms."""
PLACES: Final = {
    "mariadb": "one Redis, one MariaDB",
    "redis_cluster": "a Redis Cluster of 3 masters, one MariaDB",
    "galera": "one Redis, 3 nodes of Galera, of which one is written to",
    "mysql": "one Redis, one MySQL",
    "group_replication": "one Redis, MySQL Group Replication of 3 members, single-primary",
}
"""Servers that workers apply a backlog on, and one line on each."""
CLUSTERS: Final = tuple(f"clusters_{place}" for place in PLACES)
"""Backlogs applied by 1 and 2 workers, on each of the places."""
KILLS: Final = "kills"
"""What twenty SIGKILLs lose and double, on the server of --server."""
CONSTANTS: Final = tuple(on(server, "constants") for server in SERVERS)
"""What entries, rows and cells cost, for docs/scale.md."""

GROUPS: Final[tuple[tuple[str, ...], ...]] = (
    ("bare", "increment", "increment_dimensions", "increment_with_folding", "increment_many"),
    ("end_to_end_zipf", *BY_HAND, "peer_dramatiq_batches"),
    ("end_to_end_distinct", "raw_upserts"),
    ("peer_update", "peer_slotted_upsert"),
    ("peer_celery_batches", "peer_dramatiq", "peer_taskiq", "peer_arq", "peer_rq", "peer_bytewax"),
    ("seen_repeated", "peer_pfadd_repeated"),
    ("seen_new", "peer_pfadd_new"),
    ("backfill", "backfill_two_jobs", "peer_awk", "peer_upsert_per_line"),
    ("udp_bare", "statsd"),
    ("http_bare", "http_batch_1", "http_batch_100"),
    *(
        tuple(on(server, row) for row in group)
        for server in SERVERS
        for group in (QUIET, BESIDE, NUMBERS, *INSERTS, TRANSACTIONS)
    ),
)
"""Rows of a group are measured in turns; all are of one server."""

_WHAT_OF_BOTH: Final = {
    "compact": "slot rows of a closed day into slot 0, no pauses",
    "peer_compact_rc": "the textbook's UPDATE JOIN, DELETE at READ COMMITTED",
    "peer_compact_rr": "the same at REPEATABLE READ",
    "writers": "two writers while a closed day is compacted at the scheduled pace",
    "writers_nonstop": "the same without pauses",
    "writers_peer_rc": "the textbook at READ COMMITTED, no pauses",
    "writers_peer_rr": "the textbook at REPEATABLE READ, no pauses",
    "sequence_one": "sequences.next, one process",
    "peer_for_update_one": "SELECT … FOR UPDATE, UPDATE, COMMIT, one process",
    "peer_last_insert_id_one": "UPDATE … LAST_INSERT_ID(n + 1), SELECT LAST_INSERT_ID()",
    "sequence_blocks": "sequences.next_block of 100, one process",
    "sequence_eight": "sequences.next, eight processes on one row",
    "peer_for_update_eight": "SELECT … FOR UPDATE, UPDATE, COMMIT, eight processes",
    "peer_last_insert_id_eight": "UPDATE, SELECT LAST_INSERT_ID(), eight processes",
    "insert_one": "an application's INSERT of a row, one connection",
    "insert_one_tracked": "the same, its table tracked by status and day",
    "insert_eight": "the same without, eight connections",
    "insert_eight_tracked": "the same, its table tracked",
    "insert_bulk": "rows of INSERTs of 1,000, one connection",
    "insert_bulk_tracked": "the same, its table tracked",
    "app_transactions": "INSERT, store.increment of one key, 5 ms, COMMIT; 8 connections",
    "peer_app_transactions": "the same with UPDATE … cnt + 1 of one row",
}

WHAT: Final = {
    "bare": "with lock: d[key] = d.get(key, 0) + 1",
    "increment": "Producer.increment(), the call alone",
    "increment_dimensions": "the same with three dimensions",
    "increment_with_folding": "increment() until all is folded",
    "increment_many": "rows in dicts of 1,000, folded",
    "end_to_end_zipf": "Producer → Redis → worker → database",
    "end_to_end_distinct": "the same, every key distinct",
    "raw_upserts": "bulk upserts of distinct rows, one connection",
    "peer_update": "UPDATE … cnt + 1 per event, 16 connections",
    "peer_slotted_upsert": "slotted upsert per event, 16 connections",
    "peer_rq": "one RQ job per event",
    "peer_celery_batches": "celery-batches, 1,000 or 1 s",
    "peer_dramatiq": "one dramatiq message per event",
    "peer_dramatiq_batches": "dramatiq messages of 1,000 events each; events",
    "peer_taskiq": "one taskiq task per event",
    "peer_arq": "one arq job per event",
    "peer_bytewax": "an entry of a stream per event, counted by Bytewax, upserted each second",
    "peer_hincrby": "HINCRBY pipelined by 500, RENAME and flush",
    "peer_folded_dict": "a dictionary under a lock, upserted each second by a thread",
    "peer_folded_stream": "the same, sent to a stream; a consumer group by hand",
    "peer_stream_entries": "an entry of the stream per event, pipelined by 500",
    "peer_statsd_udp": "the package statsd's pipelines, and a plain aggregator",
    "seen_repeated": "Producer.seen() of 1,000 members, until all is in Redis",
    "peer_pfadd_repeated": "the same by PFADD, pipelined by 1,000",
    "seen_new": "Producer.seen() of another member each time, until all is in Redis",
    "peer_pfadd_new": "the same by PFADD, pipelined by 1,000",
    "backfill": "lines of a log of 10,000,000 by countersink backfill, one process",
    "backfill_two_jobs": "the same by two child processes",
    "peer_awk": "the same log by awk | sort | uniq -c, into a text file",
    "peer_upsert_per_line": "a loop in Python with one upsert per line",
    "udp_bare": "datagrams received and counted, by a loop in Python",
    "statsd": "the same by countersink statsd, understood, mapped and sent to Redis",
    "http_bare": "POST to a Starlette handler that reads the body and does nothing",
    "http_batch_1": "POST /v1/increments with a key, one increment in each request",
    "http_batch_100": "the same with 100 in each; increments",
    **{on(server, row): what for server in SERVERS for row, what in _WHAT_OF_BOTH.items()},
}
"""One line on each row, for the printed table."""

WORKER_MEGABYTES: Final = "worker_megabytes"
"""The extra field with the worker's largest resident memory, in units of 10⁶ bytes."""
WORKER_MEGABYTES_LIMIT: Final = 150
BACKFILL_MEGABYTES: Final = "peak_megabytes"
"""The same of all processes of a backfill: of that which had the most."""
BACKFILL_MEGABYTES_SMALL: Final = "peak_megabytes_of_a_tenth"
"""The same for a log with a tenth of the lines."""
BACKFILL_MEGABYTES_LIMIT: Final = 200

SHARE_KEPT: Final = "share_kept"
"""The extra field with the writers' speed beside compaction, as a share of theirs without."""
DRIFT: Final = "drift"
"""The extra field with the final total minus what the writers committed."""
WENT_DOWN: Final = "went_down"
"""The extra field with how often the reader saw a total fall."""


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: per_second of ``row`` as compared with the fastest of ``to``.

    Attributes:
        cost: False: ``row`` is to be at least ``bound`` times as fast as ``to``. True: an event of
            ``row`` is to cost at most ``bound`` times what one of ``to`` costs.
    """

    row: str
    to: tuple[str, ...]
    bound: float
    cost: bool = False

    def ratio(self, row_per_second: float, to_per_second: float) -> float:
        """The figure that is held against ``bound``."""
        if self.cost:
            return to_per_second / row_per_second
        return row_per_second / to_per_second

    def met(self, ratio: float) -> bool:
        """Whether the promise is kept."""
        return ratio <= self.bound if self.cost else ratio >= self.bound

    def __str__(self) -> str:
        to = self.to[0] if len(self.to) == 1 else "the faster peer"
        if self.cost:
            return f"≤ {self.bound:g}× the cost of {to}"
        return f"≥ {self.bound:g}× {to}"


@dataclass(frozen=True, slots=True)
class Floor:
    """A promise about an extra figure of ``row`` alone: it is at least ``bound``."""

    row: str
    extra: str
    bound: float

    def met(self, figure: float) -> bool:
        """Whether the promise is kept."""
        return figure >= self.bound

    def __str__(self) -> str:
        return f"≥ {self.bound:g}× without compaction"


TARGETS: Final = (
    Target("increment", ("bare",), 0.8, cost=True),
    Target("increment_dimensions", ("bare",), 1.6, cost=True),
    Target("increment_with_folding", ("bare",), 1.7, cost=True),
    Target("end_to_end_zipf", ("peer_hincrby",), 10),
    Target("end_to_end_zipf", ("peer_folded_dict",), 1.4),
    Target("end_to_end_zipf", ("peer_folded_stream",), 1.3),
    Target("end_to_end_distinct", ("raw_upserts",), 1.2),
    Target("seen_repeated", ("peer_pfadd_repeated",), 5),
    Target("seen_new", ("peer_pfadd_new",), 4.5),
    Target("backfill", ("peer_awk",), 0.55),
    Target("backfill_two_jobs", ("peer_awk",), 1),
    Target("statsd", ("udp_bare",), 0.5),
    Target("http_batch_1", ("http_bare",), 0.75),
    *(
        Target(on(server, "compact"), tuple(on(server, row) for row in QUIET[1:]), 1.3)
        for server in SERVERS
    ),
    *(
        Target(on(server, row), (on(server, to),), bound)
        for server in SERVERS
        for row, to, bound in (
            ("sequence_one", "peer_for_update_one", 1.1),
            ("sequence_eight", "peer_for_update_eight", 3),
            ("sequence_blocks", "sequence_one", 20),
        )
    ),
    *(Target(on(server, TRANSACTIONS[0]), (on(server, TRANSACTIONS[1]),), 5) for server in SERVERS),
)
FLOORS: Final = tuple(Floor(on(server, "writers"), SHARE_KEPT, 0.9) for server in SERVERS)
