"""Workers that die, are paused or are told to stop at a named point of a batch."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.scenarios.entry_kinds import EntryKinds
from tests.faults.stage import ACKNOWLEDGE, APPLIED_WITHIN, Stage
from tests.support.entries import compacted
from tests.support.processes import Child
from tests.support.proxies import Deed, Phase
from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a batch: before or after one request of it."""

    kind: str
    phase: Phase

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.phase.value} {self.kind}"


POINTS = (
    Point("XREADGROUP", Phase.AFTER),
    Point("control", Phase.AFTER),
    Point("guards", Phase.BEFORE),
    Point("guards", Phase.AFTER),
    Point("slots", Phase.AFTER),
    Point("ledger", Phase.AFTER),
    Point("commit", Phase.BEFORE),
    Point("commit", Phase.AFTER),
    Point(ACKNOWLEDGE, Phase.BEFORE),
    Point(ACKNOWLEDGE, Phase.AFTER),
)


def killed_at_each_point(stage: Stage) -> None:
    """SIGKILL at every point, in random order, a new worker after each, among entries of all kinds;
    all is compacted after each death.
    """
    kinds = EntryKinds(stage)
    killed_at(
        stage,
        POINTS,
        lambda: kinds.send(stage.random.randint(1, 10)),
        lambda: compacted(stage.mysql_url),
    )
    stage.finish("after deaths")
    kinds.members.check("after deaths")
    compacted(stage.mysql_url)
    kinds.members.check("after compaction")


def killed_at(
    stage: Stage,
    points: Sequence[Point],
    send: Callable[[], object],
    then: Callable[[], object] = lambda: None,
    *,
    count: int | None = None,
    **options: object,
) -> None:
    """SIGKILL at these points, or so many of them, in random order, a new worker at each; ``send``
    is called before a worker starts, and ``then`` when it is dead.
    """
    drawn = stage.random.sample(points, len(points) if count is None else count)
    print("killed", ", ".join(point.name for point in drawn))
    for point in drawn:
        send()
        child, rule = stage.victim_at(point.kind, point.phase, Deed.CUT, "kill", **options)
        stage.wait_for(rule.done, point.name, child)
        assert child.wait() == -signal.SIGKILL, child.output()
        then()


def killed_under_load(stage: Stage) -> None:
    """The same at points drawn at random, while entries come in and another worker is alive."""
    with stage.trickle():
        companion = stage.worker(proxied=False)
        killed_at(stage, stage.random.choices(POINTS, k=4), lambda: stage.send(20))
    stage.end(companion)
    stage.finish("after deaths under load")


def paused_while_others_take_over(stage: Stage) -> None:
    """A live owner is too slow: its entries are claimed and applied, then it goes on."""
    for point in stage.random.sample([POINTS[0], Point("commit", Phase.AFTER), POINTS[-2]], 2):
        stage.send(30)
        slow, rule = stage.victim_at(point.kind, point.phase, Deed.PASS, "stop")
        stage.wait_for(rule.done, point.name, slow)
        other = stage.worker(proxied=False)
        stage.wait_applied()
        stage.end(other)
        stage.send(5)
        slow.go_on()
        stage.wait_applied()
        stage.end(slow)
        stage.check(f"slow owner, {point.name}")


HOUR: dict[str, Any] = {"claim_idle_ms": 3_600_000}
"""With it only those count as dead whose process is gone."""
AFTER_READ = POINTS[0]


def found_dead(stage: Stage) -> None:
    """What a killed or frozen worker holds is taken over long before it is old: by one that was
    there, or by one that starts.
    """
    for how in stage.random.sample(["killed", "killed alone", "frozen"], 3):
        companion = stage.worker(proxied=False, **HOUR) if how != "killed alone" else None
        act = "stop" if how == "frozen" else "kill"
        victim, rule = stage.victim_at(AFTER_READ.kind, AFTER_READ.phase, Deed.PASS, act, **HOUR)
        stage.send(1)
        while not rule.done.wait(0.05):  # the companion may have been faster
            assert victim.running or rule.done.wait(30), victim.output()
            stage.send(1)
        other = companion or stage.worker(proxied=False, **HOUR)
        stage.wait_applied()
        if how == "frozen":
            stage.send(5)
            victim.go_on()
            stage.wait_applied()
            stage.end(victim)
        stage.end(other)
        stage.check(how)


def not_found_dead(stage: Stage) -> None:
    """A worker that waits for MySQL lives, and keeps what it holds."""
    held = stage.when("guards", Phase.BEFORE, Deed.HOLD, times=1, label="slow")
    stage.send(15)
    slow = stage.worker(**HOUR)
    stage.wait_acted(held, 1, slow)
    looked = stage.when("PTTL", Phase.AFTER, Deed.PASS, times=6, label="looked")
    other = stage.worker(**HOUR)
    stage.wait_acted(looked, 6, other)
    assert stage.pending() == 15
    assert "took over" not in other.output()
    held.release.set()
    stage.wait_applied()
    for worker in slow, other:
        stage.end(worker)
    assert "took over" not in other.output()
    stage.check("slow, not dead")


def terminated_in_the_midst(stage: Stage) -> None:
    """SIGTERM at any point finishes the batch and leaves nothing pending."""
    point = stage.random.choice(POINTS[:-1])
    stage.send(30)
    # small transactions: more is read ahead than fits into the next one
    child, rule = stage.victim_at(point.kind, point.phase, Deed.PASS, "terminate", batch_rows=60)
    stage.wait_for(rule.done, point.name, child)
    assert child.wait() == 0, child.output()
    assert stage.pending() == 0, f"left pending after SIGTERM {point.name}\n{child.output()}"
    stage.finish(f"SIGTERM {point.name}")


def two_workers_at_the_same_moment(stage: Stage) -> None:
    """Two workers hold the same entries and reach the guards together."""
    gathered = stage.when("guards", Phase.BEFORE, Deed.HOLD, times=2, label="two at once")
    stage.send(15)
    workers: list[Child] = [stage.worker(), stage.worker()]
    eventually(
        lambda: gathered.acted == 2,
        APPLIED_WITHIN,
        message=lambda: "\n".join(worker.output() for worker in workers),
    )
    gathered.release.set()
    stage.wait_applied()
    for worker in workers:
        stage.end(worker)
    stage.check("two at once")
