"""Many processes take values at once: each value once, whatever happens to whom."""

import os
import zoneinfo
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain, count, pairwise
from pathlib import Path

import pytest

from countersink.database.session import Session
from countersink.sequences import Sequences
from countersink.store import Store
from tests.support.processes import Children
from tests.support.run_sequence import Job
from tests.support.takers import Takers, killed_and_cut, together_without_gaps
from tests.support.waiting import eventually
from tests.support.zone_files import write_zone


def test_processes_take_each_value_once(mysql_url: str, children: Children) -> None:
    """And the way that is often written by hand gives many the same number."""
    naive = together_without_gaps(children, mysql_url, 100, processes=3)
    assert naive > 0


@pytest.mark.servers("mariadb", "mysql")
@pytest.mark.parametrize("step", [1, 3])
def test_no_value_twice_among_kills_and_cut_connections(
    mysql_url: str, children: Children, step: int
) -> None:
    """By one statement, and by a transaction."""
    found = killed_and_cut(children, mysql_url, 4, count=300, kills=1, processes=2, step=step)
    assert found.uncertain > 0
    assert found.lost > 0


SECONDS_AHEAD = 2
PROCESSES = 2
ENOUGH = 100
"""Values of the new day."""


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Path]:
    """A directory for time zones, which this process knows, too."""
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(tmp_path), *before])
    yield tmp_path
    zoneinfo.reset_tzpath(before)


def _configure(sequences: Sequences, session: Session, zones: Path) -> None:
    """A sequence by days, with a midnight soon, but not before everybody has begun."""
    for number in count():
        zone = f"Midnight_{os.getpid()}_{number}"
        midnight = _now(session) + SECONDS_AHEAD
        write_zone(zones / zone, midnight)
        sequences.configure("buyers", period="day", time_zone=zone, start=5, step=2)
        if _now(session) < midnight - 1:
            return


def _now(session: Session) -> int:
    ((now,),) = session.query("SELECT UNIX_TIMESTAMP()")
    return int(now)


def test_midnight_crossed_by_several_processes(
    mysql_url: str, session: Session, zones: Path
) -> None:
    """Each value of each day once; the day that is over stays, and the total is the sum."""
    environment = {"PYTHONTZPATH": os.pathsep.join(zoneinfo.TZPATH)}
    with Children() as children, Store(mysql_url) as store:
        sequences = store.sequences
        job = Job("next", "buyers")
        takers = Takers(children, mysql_url, job, processes=PROCESSES, environment=environment)
        _configure(sequences, session, zones)
        takers.go()

        def crossed() -> bool:
            found = sequences.periods("buyers")
            return len(found) == 2 and found[1].value > 2 * ENOUGH

        eventually(crossed)
        taken = takers.work()
        takers.wait()
        first, second = sequences.periods("buyers")
        assert first.start is not None
        assert second.start == first.start + timedelta(days=1)
        expected = Counter(range(5, first.value + 1, 2)) + Counter(range(5, second.value + 1, 2))
        assert Counter(chain(*taken)) == expected
        falls = [sum(after < before for before, after in pairwise(own)) for own in taken]
        assert max(falls) == 1, "somebody went back to the day that was over"
        assert sequences.peek("buyers") == second.value
        assert sequences.peek("buyers", period=first.start) == first.value
        assert sequences.total("buyers") == first.value + second.value
