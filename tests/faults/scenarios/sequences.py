"""Sequences whose server dies: no value twice."""

from itertools import pairwise

from countersink.store import Store
from tests.faults.stage import Stage
from tests.support.run_sequence import Job
from tests.support.takers import Takers, duplicates, values
from tests.support.waiting import eventually

PATIENCE = 120.0


def taken_from_a_server_that_dies(stage: Stage, kills: int = 4) -> None:
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
