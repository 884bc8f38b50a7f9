"""Scenarios among faults, each in a short form: whatever dies, breaks or meets, nothing is missing
and nothing counts twice. In `make test-long` the random ones are played with many faults; the soak
plays them harder still (`tests/soak/repertoire.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.faults.scenarios import (
    answers,
    app_transactions,
    backfill,
    backfill_changes,
    backfill_jobs,
    backfill_reconcile,
    bad_entries,
    breakdowns,
    compaction,
    compaction_beside,
    file_histories,
    histories,
    key_caps,
    pending,
    recovered_entries,
    server_deaths,
    tracked,
    visitors,
    worker_deaths,
)
from tests.faults.stage import Stage
from tests.support import logs
from tests.support.examples import MANY

Play = Callable[..., None]

LINES = 70_000 if MANY else 5_000
"""Of a log: two chunks, or three that are shorter."""
POINTS = None if MANY else 4
FEW_WRITES = {} if MANY else {"seconds": 0.5, "writers": 3, "snapshots": 5}
REAL = pytest.mark.skipif(not logs.REAL.exists(), reason=f"the real log is not at {logs.REAL}")


def case(play: Play, *marks: pytest.MarkDecorator, **asked: Any) -> Any:
    """A scenario and how hard it is played; what it says is in its docstring."""
    return pytest.param(partial(play, **asked), id=play.__name__, marks=marks)


def drawn(play: Play, **asked: Any) -> Any:
    """One that many faults make another one."""
    return case(play, pytest.mark.random, **asked)


def long(reason: str, play: Play, *marks: pytest.MarkDecorator, **asked: Any) -> Any:
    """One that is left to `make test-long`."""
    return case(play, pytest.mark.long(reason), *marks, **asked)


WORKERS = (
    case(worker_deaths.killed_at_each_point),
    case(worker_deaths.killed_under_load),
    case(worker_deaths.paused_while_others_take_over),
    case(worker_deaths.found_dead),
    case(worker_deaths.not_found_dead),
    case(worker_deaths.terminated_in_the_midst),
    case(worker_deaths.two_workers_at_the_same_moment),
    drawn(answers.conflicts_at_every_statement, one_of_them=not MANY),
    drawn(answers.connection_lost_at_every_statement, one_of_them=not MANY),
    case(answers.commit_replies_lost),
    case(answers.acknowledgement_replies_lost),
    case(answers.add_replies_lost),
    drawn(answers.waiting_errors, errors=6 if MANY else 1),
    case(answers.grant_revoked),
    long("as the stream deleted", recovered_entries.group_deleted_while_a_reader_blocks),
    case(recovered_entries.group_deleted_with_entries_pending),
    case(recovered_entries.stream_deleted_while_a_reader_blocks),
    case(recovered_entries.pending_with_a_dead_consumer),
    case(recovered_entries.pending_with_nobody),
    case(recovered_entries.group_position_ahead),
    case(recovered_entries.group_position_behind),
    case(bad_entries.bad_entries_among_good_ones),
    case(bad_entries.entries_without_id),
    case(bad_entries.entries_without_id_and_deaths),
    case(bad_entries.sums_beyond_64_bits),
    case(bad_entries.older_than_the_watermark),
    case(pending.read_beside_killed_workers, kills=1, rounds=1),
    drawn(compaction.steps_killed_beside_workers, kills=6 if MANY else 1),
    drawn(tracked.tracked_beside_writers, **FEW_WRITES),
    long("writers beside each damage", tracked.damage_is_found_and_mended),
)

BACKFILLS = (
    long("each line of a real log", backfill.killed_again_and_again, REAL, kills=2, real=True),
    drawn(backfill.killed_again_and_again, kills=4 if MANY else 1, lines=LINES),
    drawn(backfill_jobs.killed_at_random, kills=4 if MANY else 2, lines=LINES),
    drawn(backfill_jobs.reconciled_by_children, kills=4 if MANY else 1, lines=LINES),
    drawn(backfill.commits_cut, lines=LINES),
    drawn(backfill.conflicts_while_adding, lines=LINES),
    long("as when reconciled", backfill.beside_live_traffic, kills=1, lines=70_000),
    drawn(backfill.undone_after_live_traffic, kills=1, lines=LINES),
    long("as the one before", backfill.undone_after_roll_up, kills=1, lines=LINES),
    long("a slow run", backfill_changes.undone_while_it_goes_on, rounds=1, lines=70_000),
    drawn(backfill.two_at_once, lines=LINES),
    drawn(backfill_reconcile.made_exact_beside_live_traffic, real=MANY),
    drawn(backfill_reconcile.two_reconcile),
    drawn(backfill_reconcile.reconcile_killed, kills=1),
    drawn(backfill_reconcile.reconcile_undone, kills=1),
    drawn(breakdowns.backfills_killed_with_breakdowns, kills=3 if MANY else 1, lines=LINES),
)

BY_BOTH_DATABASES = (
    case(app_transactions.sold_among_kills, kills=2),
    case(bad_entries.floods_and_deaths),
    drawn(breakdowns.killed_with_breakdowns, count=POINTS),
    drawn(visitors.killed_with_members, count=POINTS),
    drawn(visitors.backfills_killed_with_members, kills=3 if MANY else 1, lines=LINES),
    drawn(compaction.killed_in_a_move, what="compact", kills=None if MANY else 3),
    drawn(compaction.killed_in_a_move, what="retention", kills=None if MANY else 3),
    drawn(compaction.killed_in_a_move, what="steps", kills=None if MANY else 3),
    drawn(compaction_beside.compacted_beside_writers, seconds=5 if MANY else 1.5),
    case(key_caps.killed_with_a_cap, points=key_caps.OWN_POINTS, count=1),
    long("thousands of new keys", key_caps.attacked_with_new_keys, entries=20),
)

ON_SERVERS_OF_THEIR_OWN = (
    case(server_deaths.both_servers_killed),
    case(visitors.servers_killed_with_members),
    long("with members it is short", breakdowns.servers_killed_with_breakdowns),
    long("frozen for longer than a time-out", server_deaths.servers_frozen),
    long("a replica of Redis", server_deaths.replica_promoted),
    long("a worker gives up waiting", worker_deaths.terminated_while_mysql_is_frozen),
)


@pytest.mark.parametrize("play", [*WORKERS, *BACKFILLS])
def test_it_is_exact(stage: Stage, play: Play) -> None:
    play(stage)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("play", BY_BOTH_DATABASES)
def test_it_is_exact_on_both_databases(stage: Stage, play: Play) -> None:
    play(stage)


@pytest.mark.parametrize("play", ON_SERVERS_OF_THEIR_OWN)
def test_it_is_exact_when_servers_die(own_stage: Callable[[], Stage], play: Play) -> None:
    play(own_stage())


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_lines_of_files_count_once_whatever_becomes_of_the_files(stage: Stage) -> None:
    stage.seed = stage.seed if MANY else 7  # always the same: added, rotated, killed, undone
    file_histories.backfills(stage, file_histories.HISTORIES if MANY else 1)


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.random
def test_reconciles_beside_live_traffic_set_what_the_logs_say(stage: Stage) -> None:
    stage.seed = stage.seed if MANY else 5
    file_histories.reconciles(stage, file_histories.RECONCILES if MANY else 1)


@pytest.mark.random
def test_counters_of_many_time_zones_tell_what_dictionaries_tell(stage: Stage) -> None:
    stage.seed = stage.seed if MANY else 3
    histories.histories(stage, histories.OPERATIONS if MANY else 30)
