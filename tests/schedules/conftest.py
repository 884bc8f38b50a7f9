"""What the tests of schedules share: planted tables, a job's context, and processes."""

from collections.abc import Iterator

import pytest

from countersink.schedules.jobs import Context
from countersink.schedules.options import JobOptions
from tests.schedules.tables import Kept, Tables


@pytest.fixture
def context(redis_url: str, mysql_url: str) -> Context:
    """What a run of a job works with: few rows at a time, and no pauses."""
    options = JobOptions(compact_share=1.0, compact_rows=20)
    return Context(mysql_url=mysql_url, redis_url=redis_url, options=options, stop=lambda: False)


@pytest.fixture
def tables(mysql_url: str) -> Iterator[Tables]:
    """What a test plants in the tables of a freshly migrated database, and looks at."""
    made = Tables(mysql_url)
    yield made
    made.close()


@pytest.fixture
def kept(mysql_url: str) -> Iterator[Kept]:
    """The same, with what counts and sets."""
    made = Kept(mysql_url)
    yield made
    made.close()
