"""A producer that records."""

import pytest

from countersink.producers import Producer
from tests.support.producing import recorder


@pytest.fixture
def producer() -> Producer:
    return recorder()
