"""Sequences in the hands of many processes: no value twice, whoever dies and whatever breaks."""

from collections.abc import Callable
from itertools import pairwise

from countersink.store import Store
from tests.faults.stage import Stage
from tests.support.run_sequence import Job
from tests.support.takers import Takers, duplicates, killed_and_cut, together_without_gaps, values
from tests.support.waiting import eventually

PATIENCE = 120.0


def taken_without_gaps(
    stage: Stage, count: int = 5000, *, done: Callable[[str], None] = print
) -> None:
    """Eight processes take so many values each, in every way; by hand some get the same."""
    naive = together_without_gaps(stage.children, stage.mysql_url, count)
    assert naive > 0, "the naive way handed out no value twice: the load was none"
    done(f"8 × {count} values, each once; {naive} twice the naive way")


def taken_among_kills_and_cuts(
    stage: Stage, count: int = 10_000, kills: int = 20, *, done: Callable[[str], None] = print
) -> None:
    """Processes are killed and connections cut, before and after the server did its part: values
    that one statement hands out, and values that take a transaction."""
    for step in (1, 3):
        found = killed_and_cut(
            stage.children,
            stage.mysql_url,
            stage.seed,
            count=count // 2,
            kills=kills // 2,
            processes=8,
            step=step,
        )
        stage.faults["a process that took values was killed"] += found.kills
        stage.faults["a connection was cut while a value was taken"] += found.cuts
        done(f"seed {stage.seed}, step {step}: {found}")


def taken_from_a_server_that_dies(
    stage: Stage, kills: int = 4, *, done: Callable[[str], None] = print
) -> None:
    """The server is killed and restarted again and again; it must be of the stage's own."""
    with Store(stage.mysql_url) as store:
        store.sequences.configure("yearly", period="year")
    name = stage.random.choice(["tickets", "yearly"])
    takers = Takers(stage.children, stage.mysql_url, Job("next", name))
    takers.go()

    def have(wanted: int) -> bool:
        return sum(len(values(member)) for member in takers.members) >= wanted

    wanted = 0
    for _ in range(kills):
        wanted += stage.random.randrange(200, 2000)
        eventually(lambda: have(wanted), PATIENCE)  # noqa: B023 (called before it changes)
        stage.mysql_server.kill()
        stage.faults["the server of sequences was killed"] += 1
        stage.mysql_server.start()
        wanted = sum(len(values(member)) for member in takers.members)
    eventually(lambda: have(wanted + 500), PATIENCE)
    taken = takers.work()
    takers.wait()
    assert not duplicates(taken), f"a value was handed out twice (seed {stage.seed})"
    for own in taken:
        assert all(before < after for before, after in pairwise(own)), f"seed {stage.seed}"
    done(f"seed {stage.seed}: {sum(map(len, taken)):,} {name}, {kills} deaths of the server")
