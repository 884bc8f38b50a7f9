"""Mutations of the producer: rows in memory, the outbox, what is sent again, spool, `tail`."""

from typing import Final

from tests.mutations.mutation import Mutation

_PRODUCERS: Final = "producers/countersink/producers/"

PRODUCER: Final = (
    Mutation(
        name="entry-sent-again-with-another-id",
        file=_PRODUCERS + "outbox.py",
        old="return Sealed(self.id, self.at, self.rows, self.increments)",
        new="return Sealed(new_entry_id(self.at), self.at, self.rows, self.increments)",
        tests=("tests/producers/test_flush.py",),
    ),
    Mutation(
        name="entry-sent-again-with-another-time",
        file=_PRODUCERS + "outbox.py",
        old="                if parcel.at is None:\n                    parcel.at = now",
        new="                parcel.at = now",
        tests=("tests/producers/test_flush.py", "tests/producers/test_spool.py"),
    ),
    Mutation(
        name="batch-sent-again-under-another-id-than-its-own",
        file=_PRODUCERS + "outbox.py",
        old="id = id_for(self._id_scope, *names) if names else new_entry_id",
        new="id = new_entry_id",
        tests=("tests/producers/test_batch.py",),
    ),
    Mutation(
        name="rows-of-the-parent-sent-by-a-fork",
        file=_PRODUCERS + "lifecycle.py",
        old="        producer.start_over()",
        new="        pass",
        tests=("tests/producers/test_forks.py",),
    ),
    Mutation(
        name="entry-in-doubt-taken-for-stored",
        file=_PRODUCERS + "redis_link.py",
        old="in_doubt = True\n            self._fail(error)\n            return []",
        new="in_doubt = True\n            self._fail(error)\n            return list(parcels)",
        tests=("tests/producers/test_outage.py", "tests/producers/test_flush.py"),
    ),
    Mutation(
        name="row-that-is-full-lost-when-the-next-begins",
        file=_PRODUCERS + "buffer/rows.py",
        old="                rows.full.append((row, have + table.extra.pop(key, 0)))",
        new="                table.extra.pop(key, 0)",
        tests=("tests/producers/test_bad_input.py",),
    ),
    Mutation(
        name="rows-lost-that-the-spool-could-not-take",
        file=_PRODUCERS + "spool/writer.py",
        old="self._outbox.post([parcel for parcel in parcels if parcel.at is None])",
        new="self._outbox.post([])",
        tests=("tests/producers/test_spool.py",),
    ),
    Mutation(
        name="refused-record-of-a-spool-done-with",
        file=_PRODUCERS + "spool/replay.py",
        old="mark_done(self._records[0].offset if self._records else self._offset)",
        new="mark_done(self._offset)",
        tests=("tests/producers/test_spool.py",),
    ),
    Mutation(
        name="last-record-of-a-spool-skipped",
        file=_PRODUCERS + "spool/record.py",
        old="offset + RECORD_HEADER_SIZE + length > end:",
        new="offset + RECORD_HEADER_SIZE + length >= end:",
        tests=("tests/producers/test_spool_format.py",),
    ),
    Mutation(
        name="record-of-a-spool-dated-anew-at-each-replay",
        file=_PRODUCERS + "spool/replay.py",
        old="new = [record for record in self._records if record.parcel.at is None]",
        new="new = list(self._records)",
        tests=("tests/producers/test_spool_format.py", "tests/producers/test_spool.py"),
    ),
    Mutation(
        name="position-of-a-log-moved-from-wherever-it-is",
        file=_PRODUCERS + "scripts/move.lua",
        old="if token ~= ARGV[1] then",
        new="if token == '' and ARGV[1] ~= '' then",
        tests=("tests/producers/access_log/test_tail.py",),
    ),
    Mutation(
        name="lines-of-a-log-sent-again-with-other-ids",
        file=_PRODUCERS + "access_log/sender.py",
        old='lambda n: id_for(f"tail:{ledger.source}", self.counter, f"{place}:{n}")',
        new="lambda n: new_entry_id(new.at)",
        tests=("tests/producers/access_log/test_position_file.py",),
    ),
)
