"""Several processes that take values of sequences together, and what they got."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

from countersink.database.connection import connect
from countersink.sequences.records import literal
from countersink.store import Store
from tests.support.processes import Child, Children
from tests.support.proxies import Deed, MySQLProxy, Phase, Request
from tests.support.run_sequence import Job
from tests.support.waiting import eventually

PATIENCE = 120.0
"""Seconds that a job may take on a busy machine."""
CUT_ONE_IN = 25
"""Statements whose connection is cut, when connections are cut at random."""


class Takers:
    """Processes that do the same jobs, each one at the same time.

    Args:
        children: of the test.
        url: of the store.
        jobs: to do, one after another.
        processes: how many.
        environment: of the processes.
    """

    def __init__(
        self,
        children: Children,
        url: str,
        *jobs: Job,
        processes: int = 8,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.members = [
            start_taker(children, url, *jobs, environment=environment) for _ in range(processes)
        ]
        self._done = 0
        for member in self.members:
            eventually(Said(member, "ready", 1), PATIENCE)

    def go(self) -> None:
        """Let all begin with the next job."""
        for member in self.members:
            member.say("go")

    def finish(self) -> list[list[int]]:
        """Wait until all have done their job; the values that each got."""
        self._done += 1
        for member in self.members:
            eventually(Said(member, "done", self._done), PATIENCE)
        return [values(member, self._done - 1) for member in self.members]

    def work(self) -> list[list[int]]:
        """Do the next job, or stop one that goes on for ever; the values that each got."""
        self.go()
        return self.finish()

    def wait(self) -> None:
        """Wait until all have ended, after their last job."""
        for member in self.members:
            assert member.wait(PATIENCE) == 0, member.output()[-2000:]


def start_taker(
    children: Children, url: str, *jobs: Job, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a process with jobs; each begins when it is told a line."""
    plan = {"url": url, "jobs": [asdict(job) for job in jobs]}
    return children.module(
        "run_sequence", plan, environment=environment, name="taker", lines_in=True
    )


@dataclass(frozen=True, slots=True)
class Said:
    """Whether a member has said a line so often; it must not die before."""

    member: Child
    line: str
    times: int

    def __call__(self) -> bool:
        running = self.member.running
        if lines(self.member).count(self.line) >= self.times:
            return True
        if not running:
            raise RuntimeError(f"a process has died: {self.member.output()[-2000:]}")
        return False


def lines(member: Child) -> list[str]:
    """What it has said, in whole lines."""
    return member.output().split("\n")[:-1]


def values(member: Child, job: int | None = None) -> list[int]:
    """The values that it got, in one job or in all."""
    jobs: list[list[int]] = [[]]
    for line in lines(member):
        if line == "done":
            jobs.append([])
        elif line.lstrip("-").isdigit():
            jobs[-1].append(int(line))
    return jobs[job] if job is not None else list(chain(*jobs))


def assert_all_once(taken: Sequence[Sequence[int]], start: int, step: int) -> None:
    """All values from ``start`` on, each once, without a gap, and each process's in order."""
    everything = list(chain(*taken))
    expected = range(start, start + step * len(everything), step)
    assert sorted(everything, reverse=step < 0) == list(expected)
    for own in taken:
        assert own == sorted(own, reverse=step < 0)


def duplicates(taken: Sequence[Sequence[int]]) -> int:
    """How many values somebody else was given, too."""
    everything = list(chain(*taken))
    return len(everything) - len(set(everything))


def together_without_gaps(children: Children, url: str, count: int, processes: int = 8) -> int:
    """All processes take ``count`` values each of a sequence, then of one that begins at -10 and
    goes down by 3, then by transactions of their own, then by hand: UPDATE, then SELECT.

    Returns:
        how many values the naive way handed out twice.
    """
    with connect(url) as session:
        session.execute("CREATE TABLE naive_number (n BIGINT NOT NULL) ENGINE = InnoDB")
        session.execute("INSERT INTO naive_number VALUES (0)")
    takers = Takers(
        children,
        url,
        Job("next", "tickets", count),
        Job("next", "down", count, step=-3, start=-10),
        Job("block", "blocks", max(count // 10, 5)),
        Job("next_in", "invoices", max(count // 4, 5)),
        Job("naive", "naive_number", count),
        processes=processes,
    )
    for start, step in ((1, 1), (-10, -3)):
        taken = takers.work()
        assert_all_once(taken, start, step)
        assert sum(map(len, taken)) == count * processes
    for _ in ("blocks", "invoices"):
        assert_all_once(takers.work(), 1, 1)
    naive = duplicates(takers.work())
    takers.wait()
    with connect(url) as session:
        session.execute("DROP TABLE naive_number")
    return naive


@dataclass(frozen=True, slots=True)
class Faulty:
    """What came of taking values among faults."""

    values: int
    uncertain: int
    lost: int
    """Values that nobody got: burnt."""
    kills: int
    cuts: int


def killed_and_cut(
    children: Children,
    url: str,
    seed: int,
    *,
    count: int,
    kills: int,
    processes: int = 4,
    step: int = 1,
) -> Faulty:
    """Processes are killed at random and replaced, and connections cut before or after the server
    has done its work, until ``count`` values were handed out: none of them twice.

    Pairs of values with a configured step take a transaction, of which the COMMIT is cut.
    """
    draw = random.Random(seed)
    members: list[Child] = []
    with Store(url) as store:
        store.sequences.configure("tickets", step=step)
        store.sequences.set("tickets", 0)
        store.sequences.set("connected", 0)
    single = step == 1
    size = 1 if single else 2
    with MySQLProxy.to(url) as proxy:
        job = Job("next", "tickets") if single else Job("block", "tickets", size=size)

        def hands_out(request: Request) -> bool:
            return literal(b"tickets") in request.text if single else request.text == "COMMIT"

        def start() -> Child:
            members.append(start_taker(children, proxy.url(url), job))
            members[-1].say("go")
            return members[-1]

        def have(wanted: int) -> bool:
            return sum(len(values(member)) for member in members) >= wanted

        living = [start() for _ in range(processes)]
        for phase, label in ((Phase.BEFORE, "unsent"), (Phase.AFTER, "unheard")):
            proxy.when(
                "*",
                phase,
                Deed.CUT,
                times=0,
                where=lambda request, _: hands_out(request) and draw.randrange(CUT_ONE_IN) == 0,
                label=label,
            )
        for kill in range(1, kills + 1):
            eventually(partial(have, count * kill // (kills + 1)), PATIENCE)
            living.pop(draw.randrange(len(living))).kill()
            living.append(start())
        eventually(partial(have, count), PATIENCE)
        proxy.forget()
        for member in living:
            member.say("stop")
            member.wait(PATIENCE)
        faults = proxy.faults
    everything = list(chain(*(values(member) for member in members)))
    assert len(everything) == len(set(everything)), "a value was handed out twice"
    with connect(url) as session:
        ((last,),) = session.query("SELECT value FROM sequence WHERE name = 'tickets'")
    uncertain = sum(lines(member).count("SequenceUncertain") for member in members)
    lost = last // step - len(everything)
    unheard = size * faults["unheard"]
    assert unheard <= lost <= unheard + size * kills, "more is lost than was cut off"
    # A process that was killed may have had no time to say so.
    assert faults.total() - kills <= uncertain <= faults.total()
    return Faulty(len(everything), uncertain, lost, kills, faults.total())
