"""Processes of one test."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Children


@pytest.fixture
def children() -> Iterator[Children]:
    """Processes, ended at the end."""
    with Children() as started:
        yield started
