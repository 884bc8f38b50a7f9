"""Scenarios among faults: how the tests play each of them, and how often and how hard the soak does
(`tests/soak`). What a scenario says is in its docstring.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pytest

from tests.faults.machine import state_machine
from tests.faults.scenarios import (
    answers,
    app_transactions,
    backfill,
    bad_entries,
    compaction,
    compaction_beside,
    file_histories,
    frozen_redis,
    histories,
    key_caps,
    pending,
    recovered_entries,
    schedulers,
    sequences,
    server_deaths,
    tracked,
    worker_deaths,
)
from tests.faults.stage import Stage
from tests.support.examples import MANY

Where = Literal["shared", "both", "own", "soak"]
KILLS: Final = 20
MINUTE: Final = 60.0
LOG: Final = {"kills": 1, "lines": 5_000}
"""Three chunks that are shorter than those of a backfill."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario.

    Attributes:
        play: plays it, with arguments that say how hard.
        where: tests play it on the servers that they share, also on MySQL ("both"), or on servers
            of its own, which it kills; "soak": they do not.
        short: arguments of `make test`; `make test-long` plays one that has some again without.
        long: why it is left to `make test-long`.
        seed: of `make test`; 0: another one each time.
        hard: arguments of the soak.
        weight: how often the soak draws it, relative to the others; 0: never.
        alone: takes a round of its own: it is long, or empties the tables.
        called: its name, unless that of the function.
    """

    play: Callable[..., None]
    where: Where = "shared"
    short: Mapping[str, Any] = field(default_factory=dict)
    long: str = ""
    seed: int = 0
    hard: Mapping[str, Any] = field(default_factory=dict)
    weight: int = 10
    alone: bool = False
    called: str = ""

    @property
    def name(self) -> str:
        """What tests and the soak call it."""
        return self.called or self.play.__name__

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """When tests play it."""
        if self.long:
            return [pytest.mark.long(self.long)]
        return [pytest.mark.random] if self.short else []

    def test(self, stage: Stage) -> None:
        """Play it as tests do."""
        if self.seed and not MANY:
            stage.seed = self.seed
        self.play(stage, **({} if MANY and not self.long else self.short))

    def soak(self, stage: Stage) -> None:
        """Play it as the soak does."""
        self.play(stage, **self.hard)


SCENARIOS: Final = (
    Scenario(worker_deaths.killed_at_each_point, "both"),
    Scenario(worker_deaths.killed_under_load),
    Scenario(worker_deaths.paused_while_others_take_over),
    Scenario(worker_deaths.found_dead),
    Scenario(worker_deaths.not_found_dead),
    Scenario(worker_deaths.terminated_in_the_midst),
    Scenario(worker_deaths.two_workers_at_the_same_moment),
    Scenario(answers.every_statement_fails, short={"one_of_each": True}),
    Scenario(answers.replies_lost),
    Scenario(answers.add_replies_lost),
    Scenario(answers.waiting_errors, short={"errors": 1}),
    Scenario(recovered_entries.group_deleted_with_entries_pending),
    Scenario(recovered_entries.group_position_ahead),
    Scenario(recovered_entries.group_position_behind),
    Scenario(bad_entries.bad_entries_among_good_ones),
    Scenario(bad_entries.entries_without_id),
    Scenario(bad_entries.floods_and_deaths, "both", weight=0),
    Scenario(server_deaths.both_servers_killed, "own", weight=20),
    Scenario(
        server_deaths.servers_frozen, "own", long="frozen for longer than a time-out", weight=5
    ),
    Scenario(server_deaths.replica_promoted, "own", long="a replica of Redis"),
    Scenario(frozen_redis.apps_killed_with_a_spool, "own", long="apps killed again and again"),
    Scenario(
        frozen_redis.app_outlives_a_freeze,
        "own",
        long="frozen for 30 seconds",
        weight=6,
        alone=True,
    ),
    Scenario(state_machine, short={"examples": 6, "steps": 40}, weight=30, alone=True),
    Scenario(histories.histories, short={"operations": 30}, seed=3, weight=30, alone=True),
    Scenario(
        key_caps.killed_with_a_cap,
        "both",
        short={"points": key_caps.OWN_POINTS, "count": 1},
        alone=True,
    ),
    Scenario(
        key_caps.attacked_with_new_keys,
        "both",
        long="thousands of new keys",
        hard={"entries": 1000},
        weight=5,
        alone=True,
    ),
    Scenario(
        pending.read_beside_killed_workers,
        short={"kills": 1, "rounds": 1},
        hard={"kills": KILLS, "rounds": 50},
        alone=True,
    ),
    *(
        Scenario(
            partial(compaction.killed_in_a_move, what=what),
            "both",
            called=f"{what}_killed",
            short={"kills": 3},
            hard={"kills": KILLS},
            alone=True,
        )
        for what in ("compact", "retention", "steps")
    ),
    Scenario(
        compaction_beside.compacted_beside_writers,
        "both",
        short={"seconds": 1.5},
        hard={"seconds": MINUTE},
        alone=True,
    ),
    Scenario(
        schedulers.killed_and_frozen,
        "own",
        long="jobs every second, for many seconds",
        hard={"strikes": 20},
        alone=True,
    ),
    Scenario(schedulers.job_processes_killed, "soak", alone=True),
    Scenario(
        tracked.tracked_beside_writers,
        short={"seconds": 0.5, "writers": 3, "snapshots": 5},
        hard={"seconds": MINUTE, "writers": 8, "rows": 50_000, "kills_of_track": 3},
        alone=True,
    ),
    Scenario(tracked.tracked_among_kills_and_lock_waits, "soak", alone=True),
    Scenario(
        app_transactions.sold_among_kills,
        "both",
        short={"kills": 2},
        hard={"kills": KILLS, "rows": 1500},
        alone=True,
    ),
    Scenario(sequences.taken_from_a_server_that_dies, "soak", alone=True),
    Scenario(
        backfill.killed_again_and_again, short=LOG, hard={"kills": KILLS, "real": True}, alone=True
    ),
    Scenario(backfill.killed_among_others, "soak", alone=True),
    Scenario(backfill.children_killed_at_random, short=LOG, hard={"kills": 10}, alone=True),
    Scenario(backfill.killed_with_members, "both", short=LOG, alone=True),
    Scenario(backfill.commits_cut, short={"lines": 5_000}, alone=True),
    Scenario(backfill.conflicts_while_adding, short={"lines": 5_000}, alone=True),
    Scenario(backfill.server_killed, "soak", alone=True),
    Scenario(backfill.one_hangs, "soak", weight=5, alone=True),
    Scenario(
        file_histories.backfills, "both", short={"histories": 1}, seed=7, weight=40, alone=True
    ),
    Scenario(file_histories.reconciles, "both", short={"left": 1}, seed=5, weight=5, alone=True),
)
