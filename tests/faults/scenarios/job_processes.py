"""Job processes and runs that are killed, and a Redis that is emptied, with jobs every second: each
run is done.
"""

from countersink.store.connection import connect
from tests.faults.stage import Stage
from tests.faults.troupe import EVERY_SECOND, SELDOM, TICK, Troupe, kill
from tests.support import scheduled

QUICK = {"silent_s": 3.0, "beat_every_s": 0.5, "wait_s": 60.0, "attempts": 1000}
"""A dead run is given back soon, no run is skipped for waiting long, and there are as many attempts
as it takes: this is about what becomes of each of them."""


def killed_at_random(stage: Stage, kills: int = 6) -> None:
    """A job process, a run or both are killed again and again; once Redis is emptied."""
    with connect(stage.mysql_url) as session:
        _play(Troupe(stage, session), kills)


def _play(troupe: Troupe, kills: int) -> None:
    stage = troupe.stage
    troupe.clear()
    troupe.workers = [troupe.jobs(**QUICK), troupe.jobs(**QUICK)]
    # Not BREAKS: with so many attempts its runs never end.
    troupe.schedulers = [troupe.scheduler(jobs={TICK: (EVERY_SECOND, 30)})]
    for number in range(kills):
        troupe.wait_runs(2)
        if number == kills // 2:
            stage.redis.flushall()  # of the stage's private server
            stage.faults["redis was emptied under the scheduler"] += 1
        _strike(troupe)
    troupe.wait_runs(3)
    troupe.end(*troupe.schedulers)
    # it hands over what is left, and plans nothing more
    troupe.schedulers = [troupe.scheduler(jobs={TICK: (SELDOM, 30)})]
    troupe.ready(*troupe.schedulers)
    troupe.settled()
    wrong = troupe.session.query(
        "SELECT planned_at, state, attempts, detail FROM job_run"
        " WHERE job = %s AND state <> 'done'",
        (TICK,),
    )
    assert not wrong, f"{wrong}\n{troupe.outputs()}"
    attempts = troupe.session.query("SELECT SUM(attempts) FROM job_run WHERE job = %s", (TICK,))
    started = [run for run in scheduled.starts(troupe.session) if run.startswith(TICK)]
    assert len(started) <= attempts[0][0], troupe.outputs()
    troupe.end(*troupe.schedulers, *troupe.workers)


def _strike(troupe: Troupe) -> None:
    random, faults = troupe.stage.random, troupe.stage.faults
    victim = random.choice(troupe.workers)
    horse = troupe.horse_of(victim)
    if horse is not None and random.random() < 0.5:
        kill(horse)
        faults["a run was killed"] += 1
        return
    victim.kill()
    if horse is not None and random.random() < 0.7:
        kill(horse)  # else it is an orphan, and ends what it has begun
    faults["a job process was killed"] += 1
    troupe.workers.remove(victim)
    troupe.workers.append(troupe.jobs(**QUICK))
