"""What a round of the soak may play, and how often."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from countersink.store.connection import connect
from countersink.store.migrate import migrate
from countersink.store.settings import Settings
from tests.browser import axe
from tests.browser.chromium import program, running
from tests.browser.filled import fill
from tests.browser.visits import counted_once
from tests.faults.machine import Ground, machine_on
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
    frozen_redis,
    histories,
    job_processes,
    key_caps,
    pending,
    recovered_entries,
    schedulers,
    sequences,
    server_deaths,
    tracked,
    visitors,
    worker_deaths,
)
from tests.faults.stage import Stage
from tests.support.databases import new_name
from tests.support.oracle import Oracle
from tests.support.servers import RedisServer
from tests.web.attacks import floods
from tests.web.attacks.target import Target
from tests.web.exploring import explored
from tests.web.serving import serving

MINUTE = 60.0
KILLS = 20
EXAMPLES = 50
"""Requests of each kind for each operation of the HTTP interface, about."""
BIG_TABLE = 50_000
"""Rows."""
FLOOD_KEYS = 1_000_000
VISITS = 1_000

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Act:
    """One scenario of the repertoire."""

    play: Callable[[Stage], None]
    weight: int = 10
    """How often it is drawn, relative to the others."""
    alone: bool = False
    """Takes a round of its own: it is long, or empties the tables."""
    called: str = ""

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.called or self.play.__name__


def _alone(
    name: str, play: Callable[Concatenate[Stage, P], None], *args: P.args, **asked: P.kwargs
) -> Act:
    """A scenario in a round of its own, harder than the tests play it."""
    return Act(lambda stage: play(stage, *args, **asked), alone=True, called=name)


@contextmanager
def _of_its_own(stage: Stage) -> Iterator[tuple[str, str]]:
    """URLs of an empty Redis and an empty, migrated database, which are gone afterwards."""
    url = f"{stage.mysql_url.rpartition('/')[0]}/{new_name()}"
    migrate(url)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="csk-") as directory,
            RedisServer(Path(directory) / "redis") as own,
        ):
            yield own.url, url
    finally:
        with connect(url) as session:
            session.execute(f"DROP DATABASE {Settings.parse(url).database}")


def web_flooded(stage: Stage) -> None:
    """A million new keys by HTTP, then slow clients again and again, beside live traffic."""
    with _of_its_own(stage) as (redis_url, mysql_url):
        target = Target.start(stage.children, redis_url, mysql_url)
        worker = stage.children.worker(redis_url=redis_url, mysql_url=mysql_url)
        with target.unharmed():
            floods.flood(target, "flood", FLOOD_KEYS)
        worker.terminate()
        assert worker.wait() == 0
        floods.flooded(target, "flood", FLOOD_KEYS)
        for _ in range(KILLS):
            with target.unharmed():
                floods.slow_and_deaf_clients(target)
        target.end()


def document_explored(stage: Stage) -> None:
    """schemathesis, with all that it has: it makes keys and counts junk."""
    with (
        _of_its_own(stage) as (redis_url, mysql_url),
        tempfile.TemporaryDirectory(prefix="csk-") as directory,
    ):
        found = explored(
            redis_url,
            mysql_url,
            Path(directory),
            examples=EXAMPLES,
            seed=stage.seed,
            phases="examples,coverage,fuzzing,stateful",
            keys=stage.seed % 2 == 0,
        )
    assert not found, found


def visited_by_a_thousand(stage: Stage) -> None:
    """A page of another origin, in Chromium where there is one."""
    path = program()
    if path is not None:
        with _of_its_own(stage) as (redis_url, mysql_url), running(path) as browser:
            counted_once(browser, redis_url, mysql_url, VISITS)


def dashboard_in_the_dark(stage: Stage) -> None:
    """axe-core looks at it in dark colours, in Chromium where there is one."""
    path = program()
    if path is not None:
        with (
            _of_its_own(stage) as (redis_url, mysql_url),
            serving(redis_url, mysql_url) as web,
            running(path) as browser,
        ):
            axe.nothing_yet_and_dead_letters(browser, web, "dark")
            fill(web)
            axe.every_view(browser, web, "dark")


def state_machine(stage: Stage) -> None:
    """Some runs of the state machine, longer ones than the tests make."""
    with Oracle(stage.mysql_url) as oracle:
        ground = Ground(stage.redis, oracle, stage.mysql_proxy, stage.mysql_url)
        run_state_machine_as_test(
            seed(stage.seed)(machine_on(ground)),
            settings=settings(
                max_examples=12,
                stateful_step_count=80,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
            ),
        )
    stage.traffic.increments += ground.increments


REPERTOIRE = (
    Act(document_explored, 3, alone=True),
    Act(web_flooded, 3, alone=True),
    Act(visited_by_a_thousand, 3, alone=True),
    Act(dashboard_in_the_dark, 3, alone=True),
    Act(worker_deaths.killed_at_each_point),
    Act(breakdowns.killed_with_breakdowns),
    Act(breakdowns.servers_killed_with_breakdowns),
    Act(visitors.killed_with_members, alone=True),
    Act(visitors.backfills_killed_with_members, alone=True),
    Act(visitors.servers_killed_with_members),
    Act(worker_deaths.killed_under_load),
    Act(worker_deaths.paused_while_others_take_over),
    Act(worker_deaths.terminated_in_the_midst),
    Act(worker_deaths.two_workers_at_the_same_moment),
    Act(worker_deaths.terminated_while_mysql_is_frozen, 5),
    Act(answers.conflicts_at_every_statement),
    Act(answers.connection_lost_at_every_statement),
    Act(answers.commit_replies_lost),
    Act(answers.acknowledgement_replies_lost),
    Act(answers.add_replies_lost),
    Act(answers.waiting_errors),
    Act(answers.grant_revoked),
    Act(recovered_entries.group_deleted_while_a_reader_blocks),
    Act(recovered_entries.group_deleted_with_entries_pending),
    Act(recovered_entries.stream_deleted_while_a_reader_blocks),
    Act(recovered_entries.pending_with_a_dead_consumer),
    Act(recovered_entries.pending_with_nobody),
    Act(recovered_entries.group_position_ahead),
    Act(recovered_entries.group_position_behind),
    Act(bad_entries.bad_entries_among_good_ones),
    Act(bad_entries.entries_without_id),
    Act(bad_entries.entries_without_id_and_deaths),
    Act(bad_entries.older_than_the_watermark),
    Act(bad_entries.sums_beyond_64_bits),
    Act(server_deaths.both_servers_killed, 20),
    Act(server_deaths.servers_frozen, 5),
    Act(server_deaths.replica_promoted),
    Act(frozen_redis.memory_is_bounded, 5),
    Act(frozen_redis.app_killed_again_and_again),
    Act(frozen_redis.app_outlives_a_freeze, 6, alone=True),
    Act(frozen_redis.app_killed_with_a_spool, 6, alone=True),
    Act(state_machine, 30, alone=True),
    Act(histories.histories, 30, alone=True),
    Act(key_caps.killed_with_a_cap, alone=True),
    Act(key_caps.attacked_with_new_keys, 5, alone=True),
    _alone("read_among_twenty_kills", pending.read_beside_killed_workers, KILLS, rounds=50),
    _alone("compaction_killed_twenty_times", compaction.killed_in_a_move, "compact", KILLS),
    _alone("retention_killed_twenty_times", compaction.killed_in_a_move, "retention", KILLS),
    _alone("steps_killed_twenty_times", compaction.killed_in_a_move, "steps", KILLS),
    Act(compaction.steps_killed_beside_workers, alone=True),
    _alone("compacted_for_a_minute", compaction_beside.compacted_beside_writers, MINUTE),
    Act(schedulers.killed_and_frozen, alone=True),
    Act(schedulers.three_minutes, 2, alone=True),
    Act(job_processes.killed_at_random, alone=True),
    _alone(
        "tracked_for_a_minute",
        tracked.tracked_beside_writers,
        MINUTE,
        writers=tracked.WRITERS,
        rows=BIG_TABLE,
        snapshots=20,
        kills_of_track=3,
    ),
    _alone(
        "damaged_beside_writers",
        tracked.damage_is_found_and_mended,
        tracked.WRITERS,
        rows=BIG_TABLE,
        one_by_one=True,
    ),
    Act(tracked.tracked_among_kills_and_lock_waits, alone=True),
    Act(sequences.taken_without_gaps, 5, alone=True),
    _alone("sold_among_twenty_kills", app_transactions.sold_among_kills, KILLS, rows=1500),
    Act(sequences.taken_among_kills_and_cuts, alone=True),
    Act(sequences.taken_from_a_server_that_dies, alone=True),
    _alone("backfill_killed_twenty_times", backfill.killed_again_and_again, KILLS, real=True),
    _alone("backfill_of_chunks_killed_twenty_times", backfill.killed_again_and_again, KILLS),
    _alone("backfills_at_one_log", backfill.two_at_once, rounds=4, together=3),
    Act(backfill.killed_among_others, alone=True),
    Act(backfill.commits_cut, alone=True),
    Act(backfill.conflicts_while_adding, alone=True),
    Act(backfill.beside_live_traffic, alone=True),
    Act(backfill.server_killed, alone=True),
    Act(backfill_changes.undone_while_it_goes_on, alone=True),
    Act(backfill_changes.one_hangs, 5, alone=True),
    _alone("backfill_undone_among_kills", backfill.undone_after_live_traffic, kills=8),
    _alone("backfill_undone_after_roll_up", backfill.undone_after_roll_up, kills=8),
    Act(file_histories.backfills, 40, alone=True),
    Act(file_histories.reconciles, 5, alone=True),
    _alone("backfill_jobs_killed", backfill_jobs.killed_at_random, kills=10, lines=1_000_000),
    Act(backfill_jobs.counted_by_children, 5, alone=True),
    Act(backfill_jobs.reconciled_by_children, 5, alone=True),
    Act(backfill_reconcile.made_exact_beside_live_traffic, alone=True),
    _alone("reconciled_by_two_at_once", backfill_reconcile.two_reconcile, rounds=6),
    _alone("reconcile_killed_twenty_times", backfill_reconcile.reconcile_killed, KILLS),
    _alone("reconcile_undone_among_kills", backfill_reconcile.reconcile_undone, kills=8),
)
