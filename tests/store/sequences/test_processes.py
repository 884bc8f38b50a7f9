"""Many processes take values at once: each value once, whatever happens to whom."""

from collections.abc import Iterator

import pytest

from tests.support.forked import ForkedChildren
from tests.support.processes import Children
from tests.support.takers import killed_and_cut, together_without_gaps


@pytest.fixture
def children() -> Iterator[Children]:
    """The processes of a test."""
    with ForkedChildren() as started:
        yield started


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
