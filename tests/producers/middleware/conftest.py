"""A producer that records."""

import pytest

from countersink.producers.testing import RecordingProducer


@pytest.fixture
def producer() -> RecordingProducer:
    return RecordingProducer()
