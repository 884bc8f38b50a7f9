"""Mutations of the way from Redis to the transaction: scripts, decoding, the loop of a worker."""

from typing import Final

from tests.mutations.mutation import Mutation

_SCRIPTS: Final = "producers/countersink/stream/scripts/"
_STREAM: Final = "producers/countersink/stream/"

QUEUE: Final = (
    Mutation(
        name="entry-acknowledged-by-its-stream-id-alone",
        file=_SCRIPTS + "acknowledge.lua",
        old="elseif is_ours(stream_id, found[1][2], ours) then",
        new="else",
        tests=("tests/stream/test_group.py",),
    ),
    Mutation(
        name="group-made-behind-what-is-there",
        file=_SCRIPTS + "epoch.lua",
        old="ARGV[1], '0', 'MKSTREAM')",
        new="ARGV[1], '$', 'MKSTREAM')",
        tests=("tests/stream/test_group.py",),
    ),
    Mutation(
        name="entries-read-without-being-pending",
        file=_SCRIPTS + "read.lua",
        old="'COUNT', 1, 'STREAMS', KEYS[1], '>')",
        new="'COUNT', 1, 'NOACK', 'STREAMS', KEYS[1], '>')",
        tests=("tests/stream/test_group.py",),
    ),
    Mutation(
        name="entry-dated-by-its-stream-id",
        file=_STREAM + "decode.py",
        old="at if sent_at is None else sent_at, rows, bad_rows, seen)",
        new="at, rows, bad_rows, seen)",
        tests=("tests/stream/test_entry.py", "tests/schedules/test_pruning.py"),
    ),
    Mutation(
        name="bad-row-dropped-without-a-dead-letter",
        file=_STREAM + "decode.py",
        old="                bad.append(_bad_row(position, item, error))",
        new="                pass",
        tests=("tests/stream/test_entry.py",),
    ),
    Mutation(
        name="batch-acknowledged-before-it-is-applied",
        file="worker/countersink/worker/loop.py",
        old="        applied = applier.apply(batch)\n",
        new="        self._source.acknowledge(batch)\n        applied = applier.apply(batch)\n",
        tests=("tests/faults/test_worker_deaths.py::test_killed_at_each_point_in_random_order",),
    ),
)
